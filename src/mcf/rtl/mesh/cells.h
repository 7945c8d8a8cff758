// The cells of generated C++ (`and_uu`, `add_ss`, ...: Yosys's, as CXXRTL calls them) on numbers with a lane per instance.
#pragma once
#include "lanes.h"

struct Never {};  // a reset that nobody pulls

template <size_t Bits, size_t If>
INLINE value<Bits> pick(const value<If> &condition, const value<Bits> &then, const value<Bits> &otherwise) {
    auto is_set = condition.any() != 0;
    value<Bits> out;
    each<out.chunks>([&](auto i) { out.data[i] = is_set ? then.data[i] : otherwise.data[i]; });
    return out;
}

template <size_t Bits>
INLINE value<Bits> pick(Never, const value<Bits> &, const value<Bits> &otherwise) {
    return otherwise;
}

template <size_t Y>
INLINE value<Y> truth(Vec mask) {
    value<Y> out;
    out.data[0] = mask & 1;
    return out;
}

template <size_t Bits>
INLINE value<Bits> inverse(const value<Bits> &a) {
    value<Bits> out;
    each<out.chunks>([&](auto i) { out.data[i] = ~a.data[i]; });
    return out.trim();
}

template <size_t Bits>
INLINE value<Bits> sum(const value<Bits> &a, const value<Bits> &b) {
    value<Bits> out;
    Vec carry{};
    each<out.chunks>([&](auto i) {
        Vec first = a.data[i] + b.data[i];
        out.data[i] = first + carry;
        if constexpr (i + 1 < out.chunks)
            carry = Vec(first < a.data[i] | out.data[i] < first) & 1;
    });
    return out.trim();
}

template <size_t Bits>
INLINE value<Bits> difference(const value<Bits> &a, const value<Bits> &b) {
    value<Bits> out;
    Vec borrow{};
    each<out.chunks>([&](auto i) {
        Vec first = a.data[i] - b.data[i];
        out.data[i] = first - borrow;
        if constexpr (i + 1 < out.chunks)
            borrow = Vec(a.data[i] < b.data[i] | first < borrow) & 1;
    });
    return out.trim();
}

template <size_t Bits>
INLINE Vec same(const value<Bits> &a, const value<Bits> &b) {
    Vec out{};
    each<a.chunks>([&](auto i) { out |= a.data[i] ^ b.data[i]; });
    return Vec(out == 0);
}

template <size_t Bits>
INLINE Vec less(const value<Bits> &a, const value<Bits> &b) {
    Vec out = Vec(a.data[0] < b.data[0]);
    each<a.chunks - 1>([&](auto i) {
        out = Vec(a.data[i + 1] < b.data[i + 1]) | (Vec(a.data[i + 1] == b.data[i + 1]) & out);
    });
    return out;
}

template <size_t Bits>
INLINE value<Bits> from_zero(value<Bits> a) {  // signed numbers in the order of unsigned ones
    a.data[a.chunks - 1] ^= 1u << (Bits - 1) % 32;
    return a;
}

// In digits of 16 bits.
template <size_t Bits>
INLINE value<Bits> product(const value<Bits> &a, const value<Bits> &b) {
    constexpr size_t digits = (Bits + 15) / 16;
    Vec column[digits + 1] = {};
    auto digit = [](const value<Bits> &v, auto i) { return v.data[i / 2] >> (16 * (i % 2)) & 0xffff; };
    each<digits>([&](auto i) {
        each<digits - i>([&](auto j) {
            Vec both = digit(a, i) * digit(b, j);
            column[i + j] += both & 0xffff, column[i + j + 1] += both >> 16;
        });
    });
    value<Bits> out;
    each<digits>([&](auto i) {
        out.data[i / 2] |= (column[i] & 0xffff) << (16 * (i % 2));
        column[i + 1] += column[i] >> 16;
    });
    return out.trim();
}

// Two numbers of up to 32 bits, signed.
template <size_t Y>
INLINE value<Y> short_product(Vec a, Vec b) {
    Vec a_low = a & 0xffff, b_low = b & 0xffff;
    Signed a_high = Signed(a) >> 16, b_high = Signed(b) >> 16;
    Vec low = a_low * b_low;
    Signed one = a_high * Signed(b_low), two = b_high * Signed(a_low);
    value<Y> out;
    Vec first = low + (Vec(one) << 16), all = first + (Vec(two) << 16);
    out.data[0] = all;
    if constexpr (Y > 32) {
        Vec carry = (Vec(first < low) & 1) + (Vec(all < first) & 1);
        out.data[1] = Vec(a_high * b_high + (one >> 16) + (two >> 16)) + carry;
    }
    return out.trim();
}

// Bits move down by an amount of their own in each lane.
template <size_t Bits, size_t Amount>
INLINE value<Bits> right(value<Bits> a, const value<Amount> &amount) {
    Vec by = amount.data[0], above{};
    each<amount.chunks - 1>([&](auto i) { above |= amount.data[i + 1]; });
    each<a.chunks - 1>([&](auto) {  // whole words, one at a time
        auto is_far = by >= 32;
        each<a.chunks>([&](auto i) { a.data[i] = is_far ? a.template word<i + 1>() : a.data[i]; });
        by = is_far ? by - 32 : by;
    });
    auto is_within = (by < 32) & (above == 0);
    Vec rest = by & 31;
    value<Bits> out;
    each<a.chunks>([&](auto i) {
        Vec moved = a.data[i] >> rest | a.template word<i + 1>() << 1 << (31 - rest);
        out.data[i] = is_within ? moved : Vec{};
    });
    return out;
}

template <size_t Bits>
INLINE value<Bits> flipped(const value<Bits> &a, Vec mask) {
    value<Bits> out;
    each<out.chunks>([&](auto i) { out.data[i] = a.data[i] ^ mask; });
    return out.trim();
}

#define CELL1(name, ...)                                                                                                   \
    template <size_t Y, size_t A>                                                                                          \
    INLINE value<Y> name(const value<A> &a) {                                                                              \
        __VA_ARGS__                                                                                                        \
    }
#define CELL2(name, ...)                                                                                                   \
    template <size_t Y, size_t A, size_t B>                                                                                \
    INLINE value<Y> name(const value<A> &a, const value<B> &b) {                                                           \
        [[maybe_unused]] constexpr size_t M = largest(A, B);                                                               \
        __VA_ARGS__                                                                                                        \
    }
#define BITWISE(name, cast, op)                                                                                            \
    CELL2(name, auto x = a.template cast<Y>(); auto y = b.template cast<Y>();                                              \
          each<x.chunks>([&](auto i) { x.data[i] op y.data[i]; }); return x;)
#define COMPARE(name, cast, order, expression)                                                                             \
    CELL2(name, auto x = order(a.template cast<M>()), y = order(b.template cast<M>()); return truth<Y>(expression);)

template <size_t Bits>
INLINE value<Bits> as_is(const value<Bits> &a) {
    return a;
}

CELL1(not_u, return inverse(a.template zext<Y>());)
CELL1(not_s, return inverse(a.template sext<Y>());)
CELL1(neg_u, return difference(value<Y>(), a.template zext<Y>());)
CELL1(neg_s, return difference(value<Y>(), a.template sext<Y>());)
CELL1(logic_not, return truth<Y>(Vec(a.any() == 0));)
CELL1(reduce_or, return truth<Y>(Vec(a.any() != 0));)
CELL1(reduce_bool, return truth<Y>(Vec(a.any() != 0));)
CELL1(reduce_and, return truth<Y>(Vec(inverse(a).any() == 0));)
CELL2(logic_and, return truth<Y>(Vec(a.any() != 0) & Vec(b.any() != 0));)
CELL2(logic_or, return truth<Y>(Vec((a.any() | b.any()) != 0));)
BITWISE(and_uu, zext, &=)
BITWISE(or_uu, zext, |=)
BITWISE(xor_uu, zext, ^=)
BITWISE(and_ss, sext, &=)
BITWISE(or_ss, sext, |=)
BITWISE(xor_ss, sext, ^=)
COMPARE(eq_uu, zext, as_is, same(x, y))
COMPARE(eq_ss, sext, as_is, same(x, y))
COMPARE(ne_uu, zext, as_is, ~same(x, y))
COMPARE(ne_ss, sext, as_is, ~same(x, y))
COMPARE(lt_uu, zext, as_is, less(x, y))
COMPARE(lt_ss, sext, from_zero, less(x, y))
COMPARE(ge_uu, zext, as_is, ~less(x, y))
COMPARE(ge_ss, sext, from_zero, ~less(x, y))
COMPARE(gt_uu, zext, as_is, less(y, x))
COMPARE(gt_ss, sext, from_zero, less(y, x))
COMPARE(le_uu, zext, as_is, ~less(y, x))
COMPARE(le_ss, sext, from_zero, ~less(y, x))
CELL2(add_uu, return sum(a.template zext<Y>(), b.template zext<Y>());)
CELL2(add_ss, return sum(a.template sext<Y>(), b.template sext<Y>());)
CELL2(sub_uu, return difference(a.template zext<Y>(), b.template zext<Y>());)
CELL2(sub_ss, return difference(a.template sext<Y>(), b.template sext<Y>());)
CELL2(mul_uu, return product(a.template zext<Y>(), b.template zext<Y>());)
CELL2(mul_ss, if constexpr (A <= 32 && B <= 32 && Y <= 64)
          return short_product<Y>(a.template sext<32>().data[0], b.template sext<32>().data[0]);
      else
          return product(a.template sext<Y>(), b.template sext<Y>());)
CELL2(shr_uu, return right(a, b).template zext<Y>();)
CELL2(shift_uu, return right(a, b).template zext<Y>();)
CELL2(shiftx_uu, return right(a, b).template zext<Y>();)
CELL2(sshr_su, return flipped(right(flipped(a, a.sign()), b), a.sign()).template sext<Y>();)

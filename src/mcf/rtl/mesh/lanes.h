// Several instances of a module side by side: each number of the generated C++ is a vector with a lane per instance, so
// that one evaluation of the module clocks them all. Names and meaning are those of CXXRTL's runtime, which generated code
// calls; `mcf.rtl.build.lanes` rewrites that code so that nothing in it branches on what a lane holds.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>
#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#define INLINE __attribute__((always_inline)) inline

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
typedef uint32_t Vec __attribute__((vector_size(4 * LANES), may_alias));
typedef int32_t Signed __attribute__((vector_size(4 * LANES), may_alias));

// A bit per lane that is not 0.
static INLINE uint32_t lanes_of(Vec v) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)v, (__m512i)v);
#elif defined(__AVX2__)
    return _mm256_movemask_ps((__m256)(v != 0));
#else
    uint32_t out = 0;
    for (int lane = 0; lane < LANES; lane++)
        out |= uint32_t(v[lane] != 0) << lane;
    return out;
#endif
}

static INLINE Vec mask_of(uint32_t lanes) {
    Vec out;
    for (int lane = 0; lane < LANES; lane++)
        out[lane] = 0 - (lanes >> lane & 1);
    return out;
}

template <size_t... I, class F>
INLINE void each_of(std::index_sequence<I...>, F &&f) {
    (f(std::integral_constant<size_t, I>()), ...);
}

template <size_t Count, class F>
INLINE void each(F &&f) {
    each_of(std::make_index_sequence<Count>(), f);
}

constexpr size_t largest(size_t a, size_t b) { return a > b ? a : b; }
constexpr uint32_t low_bits(size_t count) { return count % 32 ? (1u << count % 32) - 1 : ~0u; }

// A number of `Bits` bits in each lane, in words of 32, the lowest first; bits above are 0.
template <size_t Bits>
struct value {
    static constexpr size_t bits = Bits, chunks = (Bits + 31) / 32;
    Vec data[chunks] = {};

    value() = default;
    template <class... T>
    INLINE explicit value(uint32_t first, T... rest) : data{first + Vec{}, (uint32_t(rest) + Vec{})...} {
        static_assert(1 + sizeof...(T) == chunks);
    }

    template <size_t I>
    INLINE Vec word() const {
        if constexpr (I < chunks)
            return data[I];
        else
            return Vec{};
    }

    INLINE value &trim() {
        if constexpr (Bits % 32 != 0)
            data[chunks - 1] &= low_bits(Bits);
        return *this;
    }

    template <size_t New>
    INLINE value<New> zext() const {
        value<New> out;
        each<out.chunks>([&](auto i) { out.data[i] = word<i>(); });
        return New < Bits ? out.trim() : out;
    }

    INLINE Vec sign() const { return 0 - (data[chunks - 1] >> (Bits - 1) % 32 & 1); }

    template <size_t New>
    INLINE value<New> sext() const {
        value<New> out = zext<New>();
        if constexpr (New > Bits) {
            Vec fill = sign();
            if constexpr (Bits % 32 != 0)
                out.data[chunks - 1] |= fill & ~low_bits(Bits);
            each<out.chunks - chunks>([&](auto i) { out.data[chunks + i] = fill; });
            out.trim();
        }
        return out;
    }

    template <size_t Stop, size_t Start = Stop>
    INLINE value<Stop - Start + 1> slice() const {
        constexpr size_t first = Start / 32, by = Start % 32;
        value<Stop - Start + 1> out;
        each<out.chunks>([&](auto i) {
            out.data[i] = word<first + i>() >> by;
            if constexpr (by != 0 && first + i < Stop / 32)
                out.data[i] |= word<first + i + 1>() << (32 - by);
        });
        return Stop + 1 < Bits ? out.trim() : out;
    }

    template <size_t Other>
    INLINE value<Bits + Other> concat(const value<Other> &low) const {
        constexpr size_t first = Other / 32, by = Other % 32;
        value<Bits + Other> out = low.template zext<Bits + Other>();
        each<out.chunks - first>([&](auto i) {
            out.data[first + i] |= word<i>() << by;
            if constexpr (by != 0 && i > 0)
                out.data[first + i] |= word<i - 1>() >> (32 - by);
        });
        return out;
    }

    template <size_t Count>
    INLINE value<Count> repeat() const {
        static_assert(Bits == 1);
        value<Count> out;
        each<out.chunks>([&](auto i) { out.data[i] = 0 - data[0]; });
        return out.trim();
    }

    template <size_t Stop, size_t Start>
    INLINE void put(const value<Stop - Start + 1> &from) {
        value<Bits> out = from.template zext<Bits>(), hole;
        if constexpr (Start > 0)
            out = from.concat(value<Start>()).template zext<Bits>();
        each<chunks>([&](auto i) {
            constexpr size_t low = largest(Start, 32 * i), high = Stop < 32 * i + 31 ? Stop : 32 * i + 31;
            if constexpr (low <= high)
                data[i] = (data[i] & ~(low_bits(high - low + 1) << low % 32)) | out.data[i];
        });
    }

    INLINE Vec any() const {
        Vec out = data[0];
        each<chunks - 1>([&](auto i) { out |= data[i + 1]; });
        return out;
    }
};

// --- what generated code writes to: a number, a part of one, or nothing ---

template <size_t Stop, size_t Start, size_t Bits>
struct Part {
    static constexpr size_t bits = Stop - Start + 1;
    value<Bits> &whole;
    INLINE void operator=(const value<bits> &from) { whole.template put<Stop, Start>(from); }
};

template <size_t Stop, size_t Start = Stop, size_t Bits>
INLINE Part<Stop, Start, Bits> part(value<Bits> &whole) {
    return {whole};
}

template <size_t Bits>
struct skip {
    static constexpr size_t bits = Bits;
    INLINE void operator=(const value<Bits> &) {}
};

// The lowest bits to the first target, the next ones to the next.
template <size_t Bits, class Target, class... Rest>
INLINE void spread(const value<Bits> &from, Target &&target, Rest &&...rest) {
    constexpr size_t count = std::remove_reference_t<Target>::bits;
    target = from.template slice<count - 1, 0>();
    if constexpr (sizeof...(Rest) > 0)
        spread(from.template slice<Bits - 1, count>(), rest...);
}

// --- memories ---

// Initial contents as generated code lists them: an instance's, not a vector's.
template <size_t Bits>
struct word {
    uint32_t data[(Bits + 31) / 32];
};

// A memory of each lane; `Shared`: one that is never written, the same for all.
template <size_t Width, size_t Depth, bool Shared>
struct memory {
    static constexpr size_t chunks = value<Width>::chunks, stride = Shared ? 0 : Depth * chunks;
    std::vector<uint32_t> data = std::vector<uint32_t>(Shared ? Depth * chunks : LANES * stride);

    void fill(const word<Width> *from) {
        for (int lane = 0; lane < (Shared ? 1 : LANES); lane++)
            for (size_t i = 0; i < Depth; i++)
                for (size_t c = 0; c < chunks; c++)
                    data[lane * stride + i * chunks + c] = from[i].data[c];
    }

    // Beyond the end: 0.
    template <size_t Bits>
    INLINE value<Width> read(const value<Bits> &address) const {
        static_assert(Bits <= 32);
        value<Width> out;
        const uint32_t *from = data.data();
        for (int lane = 0; lane < LANES; lane++, from += stride) {
            uint32_t at = address.data[0][lane];
            if (Bits < 32 && (uint64_t(1) << Bits) > Depth && at >= Depth)
                continue;
            for (size_t c = 0; c < chunks; c++)
                out.data[c][lane] = from[at * chunks + c];
        }
        return out;
    }

    // Writes the bits of `mask` where a lane is awake; returns the lanes in which that changed something.
    template <size_t Bits>
    INLINE uint32_t write(const value<Bits> &address, const value<Width> &from, const value<Width> &mask, uint32_t awake) {
        static_assert(!Shared);
        uint32_t changed = 0;
        for (uint32_t left = lanes_of(mask.any()) & awake; left != 0; left &= left - 1) {
            int lane = __builtin_ctz(left);
            uint32_t at = address.data[0][lane];
            if (at >= Depth)
                continue;
            uint32_t *into = &data[lane * stride + at * chunks], differs = 0;
            for (size_t c = 0; c < chunks; c++) {
                uint32_t flips = (into[c] ^ from.data[c][lane]) & mask.data[c][lane];
                differs |= flips, into[c] ^= flips;
            }
            changed |= uint32_t(differs != 0) << lane;
        }
        return changed;
    }
};

// What registers take at an edge, in the lanes that are awake; returns the lanes in which one changes.
template <class Registers>
uint32_t commit(Registers &curr, Registers &next, uint32_t awake) {
    Vec *now = reinterpret_cast<Vec *>(&curr), *then = reinterpret_cast<Vec *>(&next), all{}, mask = mask_of(awake);
    for (size_t i = 0; i < sizeof(Registers) / sizeof(Vec); i++) {
        Vec flips = (now[i] ^ then[i]) & mask;
        all |= flips, now[i] ^= flips, then[i] = now[i];
    }
    return lanes_of(all);
}

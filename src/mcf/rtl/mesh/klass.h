// What every generated class shares: copying words to and from ports, one clock cycle, waveforms.
#pragma once
#include <cstring>
#include <string>

#ifdef MCF_LANES
#include "cells.h"
#else
#include <cxxrtl/cxxrtl.h>
using cxxrtl::value;
using cxxrtl::wire;
constexpr int LANES = 1;
#endif
#ifdef MCF_WAVEFORM
#include <cxxrtl/cxxrtl_vcd.h>
#endif

#include "mesh.h"

#ifdef MCF_LANES
template <size_t Bits>
static inline void load(value<Bits> &port, int lane, const uint32_t *words) {
    for (size_t i = 0; i < port.chunks; i++)
        port.data[i][lane] = words[i] & (i + 1 < port.chunks ? ~0u : low_bits(Bits));
}

template <size_t Bits>
static inline void store(const value<Bits> &port, int lane, uint32_t *words) {
    for (size_t i = 0; i < port.chunks; i++)
        words[i] = port.data[i][lane];
}

template <class Top>
static inline uint32_t clock_cycle(Top &top, uint32_t awake) {
    uint32_t changed = top.edge(awake);
    top.outputs();
    return changed;
}
#else
template <size_t Bits>
static inline void load(value<Bits> &port, int, const uint32_t *words) {
    for (size_t i = 0; i < port.chunks; i++)
        port.data[i] = words[i];
    if constexpr (Bits % 32 != 0)
        port.data[port.chunks - 1] &= (1u << (Bits % 32)) - 1;
}

template <size_t Bits>
static inline void load(wire<Bits> &port, int lane, const uint32_t *words) {
    load(port.next, lane, words);
}

template <size_t Bits>
static inline void store(const value<Bits> &port, int, uint32_t *words) {
    for (size_t i = 0; i < port.chunks; i++)
        words[i] = port.data[i];
}

template <size_t Bits>
static inline void store(const wire<Bits> &port, int lane, uint32_t *words) {
    store(port.curr, lane, words);
}

// `eval` says whether it was enough; where wires feed back into it, it never does: then nothing may change any more.
template <class Top>
static inline bool settle(Top &top) {
    bool changed = false, converged, moved;
    do {
        converged = top.eval();
        moved = top.commit();
        changed |= moved;
    } while (moved && !converged);
    return changed;
}

// A rising edge, then the falling one: only after that are outputs that are logic on registers up to date.
template <class Top>
static inline uint32_t clock_cycle(Top &top, uint32_t) {
    top.p_clk.set(true);
    bool changed = settle(top);
    top.p_clk.set(false);
    return settle(top) | changed;
}
#endif

#ifdef MCF_WAVEFORM
struct Waveform {
    cxxrtl::vcd_writer writer;
};

template <class Top>
static void *open_waveform(void **tops, const char **names, int num_tops) {
    auto *out = new Waveform;
    out->writer.timescale(1, "ns");
    for (int i = 0; i < num_tops; i++) {
        cxxrtl::debug_items items;
        static_cast<Top *>(tops[i])->debug_info(&items, nullptr, std::string(names[i]) + " ");
        out->writer.add(items);
    }
    return out;
}

constexpr uint64_t CYCLE_NS = 5;  // of the clock that every output assumes

static void sample_waveform(void *waveform, uint64_t cycle) {
    static_cast<Waveform *>(waveform)->writer.sample(CYCLE_NS * cycle);
}

static int64_t take_waveform(void *waveform, char *into, int64_t room) {
    std::string &text = static_cast<Waveform *>(waveform)->writer.buffer;
    int64_t size = std::min<int64_t>(room, text.size());
    memcpy(into, text.data(), size);
    text.erase(0, size);
    return size;
}

static void close_waveform(void *waveform) { delete static_cast<Waveform *>(waveform); }
#define MCF_WAVEFORM_CALLS(Top) open_waveform<Top>, sample_waveform, take_waveform, close_waveform
#else
#define MCF_WAVEFORM_CALLS(Top) nullptr, nullptr, nullptr, nullptr
#endif

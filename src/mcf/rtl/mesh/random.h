// xorshift64*: which cycles an end stalls in; tests repeat it in Python.
#pragma once
#include <cstdint>

struct Random {
    uint64_t state = 1;
    uint32_t chance = 0;  // of 256

    uint64_t next() {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        return state * 2685821657736338717ull;
    }
    bool hit() { return chance != 0 && next() >> 56 < chance; }
};

// What a compiled module and the mesh say to each other. A module is a class (Klass) with streams as ports; the mesh
// clocks instances of classes and moves what their streams hold.
#pragma once
#include <cstdint>

constexpr int STREAM_WORDS = 12;  // of 32 bits: the widest payload is 384 bits

// One stream for one cycle. Of an input the mesh drives valid and words and the module ready; of an output the reverse.
struct Stream {
    uint32_t valid, ready;
    uint32_t words[STREAM_WORDS];
};

// A module: `tick` drives its inputs, gives it one rising edge, lets it settle, and reads its outputs. `signals_in` and
// `signals_out` are the ports that are no streams, one after the other, each on whole words. It returns whether any
// register changed: if none did and no input changes, the next cycle changes nothing either.
struct Klass {
    void *(*make)();
    void (*drop)(void *top);
    int (*tick)(void *top, Stream *inputs, Stream *outputs, const uint32_t *signals_in, uint32_t *signals_out);
    int num_inputs, num_outputs, num_words_in, num_words_out;
    // Writes a value change dump of an instance: null where the module was compiled without.
    void *(*open_waveform)(void **tops, const char **names, int num_tops);
    void (*sample_waveform)(void *waveform, uint64_t cycle);
    int64_t (*take_waveform)(void *waveform, char *into, int64_t room);
    void (*close_waveform)(void *waveform);
};

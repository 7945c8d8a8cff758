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

// Where an instance's ports are: all its streams, then the ports that are no streams, one after the other, each on whole
// words.
struct Ends {
    Stream *inputs, *outputs;
    uint32_t *signals_in, *signals_out;
};

// A module. `make` makes as many instances as it has lanes, which run side by side; `tick` takes the instances of `awake`,
// a bit each: it drives their inputs, gives them one rising edge, lets them settle, and reads their outputs. It returns
// those of which any register changed: where none did and no input changes, the next cycle changes nothing either.
struct Klass {
    int lanes;
    void *(*make)();
    void (*drop)(void *top);
    uint32_t (*tick)(void *top, const Ends *ends, uint32_t awake);
    int num_inputs, num_outputs, num_words_in, num_words_out;
    // Writes a value change dump of an instance: null where the module was compiled without.
    void *(*open_waveform)(void **tops, const char **names, int num_tops);
    void (*sample_waveform)(void *waveform, uint64_t cycle);
    int64_t (*take_waveform)(void *waveform, char *into, int64_t room);
    void (*close_waveform)(void *waveform);
};

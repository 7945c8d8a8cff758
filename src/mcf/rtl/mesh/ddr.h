// A DRAM behind AXI ports: one memory, one data bus, banks with open rows, queues per port. mesh/ddr.py says what it
// models. Ports are registers of a module (mcf.rtl.hdl.axi), so what they say is known before a cycle begins.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "random.h"

constexpr uint64_t ROW_BYTES = 8192, NUM_BANKS = 16;
constexpr uint32_t BEAT_BYTES = 16, BEAT_WORDS = 4, MAX_BURSTS = 16, SLVERR = 2;
constexpr int64_t BEAT_COST = BEAT_BYTES * 256;  // of the bus, in 1/256 bytes

// Bytes by address; what was never written is zero.
class Image {
    static constexpr uint64_t BLOCK = 1 << 16;
    std::unordered_map<uint64_t, std::unique_ptr<uint8_t[]>> blocks;

    template <class Part> void walk(uint64_t address, uint64_t size, Part part) {
        for (uint64_t done = 0; done < size;) {
            uint64_t at = (address + done) % BLOCK, count = std::min(size - done, BLOCK - at);
            part((address + done) / BLOCK, at, done, count);
            done += count;
        }
    }

  public:
    void write(uint64_t address, const void *from, uint64_t size) {
        walk(address, size, [&](uint64_t block, uint64_t at, uint64_t done, uint64_t count) {
            auto &place = blocks[block];
            if (!place)
                place = std::make_unique<uint8_t[]>(BLOCK);
            memcpy(place.get() + at, static_cast<const uint8_t *>(from) + done, count);
        });
    }

    void read(uint64_t address, void *into, uint64_t size) {
        walk(address, size, [&](uint64_t block, uint64_t at, uint64_t done, uint64_t count) {
            auto found = blocks.find(block);
            uint8_t *to = static_cast<uint8_t *>(into) + done;
            if (found == blocks.end())
                memset(to, 0, count);
            else
                memcpy(to, found->second.get() + at, count);
        });
    }
};

// Where a port's signals lie among its instance's, in words; the order of the names in mesh/ddr.py.
struct ReadPlaces {
    int32_t araddr, arlen, arvalid, rready, arready, rdata, rresp, rlast, rvalid;
};
struct WritePlaces {
    int32_t awaddr, awlen, awvalid, wdata, wvalid, bready, awready, wready, bresp, bvalid;
};

struct PortCounts {
    uint64_t beats, bursts, misses, starved;  // starved: cycles in which a beat waited for the bus
};

struct DdrPort {
    bool is_read;
    ReadPlaces r{};
    WritePlaces w{};
    const uint32_t *out;  // the instance's signals
    uint32_t *in;
    bool *awake;
    struct Burst {
        uint64_t due, address;
        uint32_t left;
        bool is_bad;
    };
    std::deque<Burst> bursts;   // asked for
    std::deque<Burst> answers;  // writes that wait for their answer
    Random stall;
    bool moves = false;  // a beat is offered (read) or taken (write) in this cycle
    bool answered = false;
    PortCounts counts{};

    void set(int32_t at, uint32_t value) {
        *awake |= in[at] != value;
        in[at] = value;
    }
    uint64_t address(int32_t at) const { return out[at] | uint64_t(out[at + 1]) << 32; }
};

struct Ddr {
    uint32_t latency, row_miss;
    int64_t rate;  // of the bus, in 1/256 bytes per cycle
    uint64_t size;
    std::vector<std::unique_ptr<DdrPort>> ports;
    Image image;
    int64_t bus = 0;
    size_t turn = 0;
    uint64_t open_row[NUM_BANKS], began[NUM_BANKS]{};

    Ddr() { std::fill_n(open_row, NUM_BANKS, ~0ull); }

    // Before the edge: what the ports see. Reads and writes take their share of the bus in turns.
    void exchange(uint64_t cycle) {
        bus = std::min(bus, BEAT_COST) + rate;
        size_t starved = ports.size();
        for (size_t k = 0; k < ports.size(); k++) {
            size_t i = (turn + k) % ports.size();
            DdrPort &p = *ports[i];
            bool wants = p.is_read ? wants_read(p, cycle) : wants_write(p);
            if (wants && bus < BEAT_COST) {
                p.counts.starved++;
                starved = std::min(starved, k);
            } else if (wants) {
                bus -= BEAT_COST;
                p.moves = true;
            }
            p.is_read ? show_read(p) : show_write(p, cycle);
        }
        if (starved < ports.size())
            turn = (turn + starved) % ports.size();
    }

    // At the edge: what crosses.
    void transfer(uint64_t cycle) {
        for (auto &p : ports)
            p->is_read ? transfer_read(*p, cycle) : transfer_write(*p, cycle);
    }

    bool has_work() const {
        for (auto &p : ports) {
            if (p->is_read ? !p->bursts.empty() && (!p->moves || p->out[p->r.rready])
                           : !p->bursts.empty() && p->out[p->w.wvalid])
                return true;
            if (!p->answers.empty() && (!p->answered || p->out[p->w.bready]))
                return true;
        }
        return false;
    }

  private:
    bool wants_read(DdrPort &p, uint64_t cycle) {
        return !p.stall.hit() && !p.moves && !p.bursts.empty() && p.bursts.front().due <= cycle;
    }

    bool wants_write(DdrPort &p) { return !p.stall.hit() && !p.bursts.empty() && p.out[p.w.wvalid]; }

    void show_read(DdrPort &p) {
        p.set(p.r.arready, p.bursts.size() < MAX_BURSTS);
        p.set(p.r.rvalid, p.moves);
        if (!p.moves)
            return;
        const DdrPort::Burst &burst = p.bursts.front();
        uint32_t words[BEAT_WORDS]{};
        if (!burst.is_bad)
            image.read(burst.address, words, BEAT_BYTES);
        for (uint32_t i = 0; i < BEAT_WORDS; i++)
            p.set(p.r.rdata + i, words[i]);
        p.set(p.r.rresp, burst.is_bad ? SLVERR : 0);
        p.set(p.r.rlast, burst.left == 1);
    }

    void show_write(DdrPort &p, uint64_t cycle) {
        p.answered = !p.answers.empty() && p.answers.front().due <= cycle;
        p.set(p.w.awready, p.bursts.size() + p.answers.size() < MAX_BURSTS);
        p.set(p.w.wready, p.moves);
        p.set(p.w.bvalid, p.answered);
        p.set(p.w.bresp, p.answered && p.answers.front().is_bad ? SLVERR : 0);
    }

    void transfer_read(DdrPort &p, uint64_t cycle) {
        if (p.moves && p.out[p.r.rready]) {
            DdrPort::Burst &burst = p.bursts.front();
            p.counts.beats++;
            burst.address += BEAT_BYTES;
            p.moves = false;
            if (--burst.left == 0)
                p.bursts.pop_front();
        }
        if (p.out[p.r.arvalid] && p.in[p.r.arready]) {
            p.bursts.push_back(ask(p, cycle, p.address(p.r.araddr), p.out[p.r.arlen] + 1));
            p.bursts.back().due = begins(p, cycle, p.bursts.back().address);
        }
    }

    void transfer_write(DdrPort &p, uint64_t cycle) {
        if (p.answered && p.out[p.w.bready])
            p.answers.pop_front();
        if (p.moves) {
            DdrPort::Burst &burst = p.bursts.front();
            if (!burst.is_bad)
                image.write(burst.address, p.out + p.w.wdata, BEAT_BYTES);
            p.counts.beats++;
            burst.address += BEAT_BYTES;
            p.moves = false;
            if (--burst.left == 0) {
                burst.due = cycle + 1 + latency;
                p.answers.push_back(burst);
                p.bursts.pop_front();
            }
        }
        if (p.out[p.w.awvalid] && p.in[p.w.awready])
            p.bursts.push_back(ask(p, cycle, p.address(p.w.awaddr), p.out[p.w.awlen] + 1));
    }

    DdrPort::Burst ask(DdrPort &p, uint64_t cycle, uint64_t address, uint32_t beats) {
        p.counts.bursts++;
        return DdrPort::Burst{cycle, address, beats, address + uint64_t(beats) * BEAT_BYTES > size};
    }

    // The first cycle in which a burst's first beat may be offered; opens its row.
    uint64_t begins(DdrPort &p, uint64_t cycle, uint64_t address) {
        uint64_t bank = address / ROW_BYTES % NUM_BANKS, row = address / ROW_BYTES / NUM_BANKS;
        uint64_t due = std::max(cycle + 1 + latency, began[bank]);
        if (open_row[bank] != row) {
            due += row_miss;
            p.counts.misses++;
        }
        open_row[bank] = row;
        return began[bank] = due;
    }
};

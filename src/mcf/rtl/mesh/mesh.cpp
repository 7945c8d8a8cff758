// A mesh: instances of compiled modules, links between their streams, sources and sinks at the ends.
//
// One cycle: exchange (what every stream offers and takes, from what the modules last put out), transfer (what crosses
// at this edge), tick (every module). All outputs of a module are functions of its registers, so the order of modules
// does not matter, and a module whose registers and inputs did not change is not run: nothing in it would change.
// Instances of one module run side by side where it was compiled so (lanes.h).
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "ddr.h"
#include "mesh.h"
#include "random.h"

namespace {

using Words = uint32_t[STREAM_WORDS];

struct Item {
    uint64_t cycle;
    Words words;
};

struct Instance;

// Instances of one module that run side by side, as many as it has lanes.
struct Group {
    const Klass *klass;
    void *top;
    std::vector<Instance *> members;
    std::vector<Ends> ends;

    Group(const Klass *k) : klass(k), top(k->make()) {}
    Group(const Group &) = delete;
    ~Group() { klass->drop(top); }
    void tick();
};

struct Instance {
    Group *group;
    std::vector<Stream> inputs, outputs;
    std::vector<uint32_t> signals_in, signals_out;
    bool awake = true;

    Instance(Group *g)
        : group(g), inputs(g->klass->num_inputs), outputs(g->klass->num_outputs), signals_in(g->klass->num_words_in + 1),
          signals_out(g->klass->num_words_out + 1) {
        g->members.push_back(this);
        g->ends.push_back({inputs.data(), outputs.data(), signals_in.data(), signals_out.data()});
    }
    Instance(const Instance &) = delete;

    void drive(int port, bool valid, const uint32_t *words) {
        Stream &s = inputs[port];
        if (s.valid == (valid ? 1u : 0u) && (!valid || memcmp(s.words, words, sizeof(Words)) == 0))
            return;
        s.valid = valid;
        if (valid)
            memcpy(s.words, words, sizeof(Words));
        awake = true;
    }

    void accept(int port, bool ready) {
        if (outputs[port].ready == (ready ? 1u : 0u))
            return;
        outputs[port].ready = ready;
        awake = true;
    }
};

void Group::tick() {
    uint32_t awake = 0;
    for (size_t lane = 0; lane < members.size(); lane++)
        awake |= uint32_t(members[lane]->awake) << lane;
    if (awake == 0)
        return;
    awake = klass->tick(top, ends.data(), awake);
    for (size_t lane = 0; lane < members.size(); lane++)
        members[lane]->awake = awake >> lane & 1;
}

// Counts the cycles in which a signal of an instance is high, and leads it to a bit of another's input.
struct Pulses {
    Instance *from;
    int at;
    uint64_t count;
    Instance *to;
    int to_at, to_bit;

    void step() {
        bool is_high = from->signals_out[at] != 0;
        count += is_high;
        uint32_t &signal = to->signals_in[to_at];
        if ((signal >> to_bit & 1) != is_high) {
            signal ^= 1u << to_bit;
            to->awake = true;
        }
    }
};

enum FaultKind { FLIP, DROP, DOUBLE, SILENCE };

// What goes wrong on a link. `at` counts the words that entered it (SILENCE: cycles); FLIP changes bit `arg`, SILENCE
// loses everything for `arg` cycles.
struct Fault {
    uint64_t at;
    uint32_t kind, arg;
};

struct LinkCounts {
    uint64_t moved, stalled, lost, flipped, doubled;
};

// On a share of all words one bit flips, the word is lost, or it comes twice.
struct Noise {
    Random random;
    uint32_t chance = 0;  // of 2^24
    uint32_t num_bits = 0;

    bool hit() { return chance != 0 && random.next() >> 40 < chance; }
};

struct Record {  // one packet that crossed a link
    uint64_t first, last;
    uint32_t header[4];
    uint32_t link, num_beats;
};

struct Link {
    Instance *from, *to;
    int from_port, to_port;
    uint32_t latency, depth;
    int last_bit;  // of the payload: ends a packet; -1: not packets, nothing is recorded
    Random stall;
    std::vector<Fault> silences;
    std::map<uint64_t, std::vector<Fault>> faults;  // of words
    Noise noise;
    std::deque<Item> pipe;
    LinkCounts counts{};
    uint64_t entered = 0;
    bool in_packet = false;
    Record open{};
    bool blocked = false;

    bool is_direct() const { return depth == 0; }
};

struct Source {
    Instance *to;
    int port;
    Random gap;
    std::deque<Item> queue;
    bool offered = false;
};

struct Sink {
    Instance *from;
    int port;
    Random stall;
    std::deque<Item> log;
    int last_bit = -1;  // of a payload that wakes; -1: each does
    uint64_t held_from = 0, held_for = 0;  // cycles in which it takes nothing

    bool is_held(uint64_t cycle) const { return cycle >= held_from && cycle - held_from < held_for; }
};

// Answers requests {address, beats} on one stream with that many 128-bit beats of memory on another.
struct Producer {
    Instance *node;
    int request_port, payload_port;
    std::vector<uint8_t> memory;
    uint64_t address = 0;
    uint32_t left = 0;
    uint32_t total = 0;
};

// An AXI4-Lite master: one access at a time, in order. Places are words of the instance's signals.
struct AxiMaster {
    struct Places {
        int32_t awaddr, awvalid, wdata, wstrb, wvalid, bready, araddr, arvalid, rready;
        int32_t awready, wready, bresp, bvalid, arready, rdata, rresp, rvalid, interrupt;
    };
    struct Access {
        uint32_t is_write, address, word;
    };
    Instance *node;
    Places at;
    std::deque<Access> queue;
    std::vector<uint32_t> answers;
    bool is_open = false;      // the first of the queue is on its way
    uint32_t refused = 0;      // accesses that were answered with an error
    bool takes_aw = false, takes_w = false, takes_ar = false;  // at the last edge
    uint32_t rested = 0;       // cycles without an access, up to INTERRUPT_DELAY

    uint32_t out(int place) const { return node->signals_out[place]; }
    void set(int place, uint32_t value) {
        uint32_t &signal = node->signals_in[place];
        node->awake |= signal != value;
        signal = value;
    }
};

constexpr uint32_t INTERRUPT_DELAY = 8;  // an access that takes the interrupt's reason away shows by then

struct Mesh {
    std::vector<std::unique_ptr<Group>> groups;
    std::vector<std::unique_ptr<Instance>> instances;
    std::vector<std::unique_ptr<Link>> links;
    std::vector<std::unique_ptr<Source>> sources;
    std::vector<std::unique_ptr<Sink>> sinks;
    std::vector<std::unique_ptr<Producer>> producers;
    std::vector<std::unique_ptr<AxiMaster>> axis;
    std::vector<std::unique_ptr<Ddr>> ddrs;
    std::vector<Record> records;
    std::vector<Pulses> pulses;
    uint64_t cycle = 0;
    void *waveform = nullptr;
    const Klass *waveform_klass = nullptr;
    bool woken = false;
    bool answered = false;  // software has something to do

    bool has_work() const;
    void exchange();
    void transfer();
    void step();
};

bool bit_of(const uint32_t *words, int bit) { return words[bit / 32] >> (bit % 32) & 1; }

bool is_silent(const Link &link, uint64_t cycle) {
    for (const Fault &fault : link.silences)
        if (fault.at <= cycle && cycle - fault.at < fault.arg)
            return true;
    return false;
}

void exchange_link(Link &link, uint64_t cycle) {
    Stream &out = link.from->outputs[link.from_port];
    if (link.is_direct()) {
        link.to->drive(link.to_port, out.valid, out.words);
        link.from->accept(link.from_port, link.to->inputs[link.to_port].ready);
        return;
    }
    bool has = !link.pipe.empty() && link.pipe.front().cycle + link.latency <= cycle;
    link.to->drive(link.to_port, has, has ? link.pipe.front().words : out.words);
    link.blocked = link.stall.hit();
    link.from->accept(link.from_port, link.pipe.size() < link.depth && !link.blocked);
}

void record(Mesh &mesh, Link &link, uint32_t index, const uint32_t *words) {
    if (link.last_bit < 0)
        return;
    if (!link.in_packet) {
        link.open = Record{mesh.cycle, 0, {words[0], words[1], words[2], words[3]}, index, 0};
        link.in_packet = true;
    }
    link.open.num_beats++;
    if (bit_of(words, link.last_bit)) {
        link.open.last = mesh.cycle + link.latency;
        link.in_packet = false;
        mesh.records.push_back(link.open);
    }
}

// What goes wrong with the word that entered last; false: it is gone.
bool break_word(Link &link, uint32_t kind, uint32_t arg) {
    if (kind == FLIP) {
        link.pipe.back().words[arg / 32] ^= 1u << (arg % 32);
        link.counts.flipped++;
    } else if (kind == DOUBLE) {
        link.pipe.push_back(link.pipe.back());
        link.counts.doubled++;
    } else {
        link.pipe.pop_back();
        link.counts.lost++;
    }
    return kind != DROP;
}

void enter(Link &link, uint64_t cycle, const uint32_t *words) {
    uint64_t at = link.entered++;
    if (is_silent(link, cycle)) {
        link.counts.lost++;
        return;
    }
    link.pipe.push_back(Item{cycle, {}});
    memcpy(link.pipe.back().words, words, sizeof(Words));
    if (auto found = link.faults.find(at); found != link.faults.end())
        for (const Fault &fault : found->second)
            if (!break_word(link, fault.kind, fault.arg))
                return;
    if (link.noise.hit()) {
        constexpr uint32_t kinds[] = {FLIP, DROP, DOUBLE};
        uint64_t drawn = link.noise.random.next() >> 16;
        break_word(link, kinds[drawn % 3], (drawn >> 8) % link.noise.num_bits);
    }
}

void transfer_link(Mesh &mesh, Link &link, uint32_t index) {
    Stream &out = link.from->outputs[link.from_port];
    Stream &in = link.to->inputs[link.to_port];
    if (!link.is_direct() && in.valid && in.ready)
        link.pipe.pop_front();
    if (out.valid && out.ready) {
        link.counts.moved++;
        record(mesh, link, index, out.words);
        if (!link.is_direct())
            enter(link, mesh.cycle, out.words);
    } else if (out.valid) {
        link.counts.stalled++;
    }
}

void exchange_producer(Producer &p) {
    Words words{};
    if (p.left) {
        memcpy(words, p.memory.data() + p.address, 16);
        words[4] = p.left == 1;
    }
    p.node->drive(p.payload_port, p.left > 0, words);
    p.node->accept(p.request_port, p.left == 0);
}

void transfer_producer(Producer &p) {
    Stream &in = p.node->inputs[p.payload_port];
    Stream &out = p.node->outputs[p.request_port];
    if (in.valid && in.ready) {
        p.left--;
        p.address += 16;
    }
    if (out.valid && out.ready) {
        p.address = out.words[0] | uint64_t(out.words[1] & 0xff) << 32;
        p.left = out.words[1] >> 8 & 0xffff;
        if (p.address + 16ull * p.left > p.memory.size())
            p.left = 0; // beyond the memory: no answer
    }
}

// A valid that was taken is lowered; a response is always taken.
void exchange_axi(AxiMaster &axi) {
    const AxiMaster::Places &at = axi.at;
    if (axi.takes_aw)
        axi.set(at.awvalid, 0);
    if (axi.takes_w)
        axi.set(at.wvalid, 0);
    if (axi.takes_ar)
        axi.set(at.arvalid, 0);
    axi.takes_aw = axi.takes_w = axi.takes_ar = false;
    if (axi.is_open || axi.queue.empty())
        return;
    const AxiMaster::Access &access = axi.queue.front();
    axi.is_open = true;
    if (access.is_write) {
        axi.set(at.awaddr, access.address), axi.set(at.wdata, access.word), axi.set(at.wstrb, 15);
        axi.set(at.awvalid, 1), axi.set(at.wvalid, 1), axi.set(at.bready, 1);
    } else {
        axi.set(at.araddr, access.address), axi.set(at.arvalid, 1), axi.set(at.rready, 1);
    }
}

// What the node put out for this cycle; inputs change for the next one.
void transfer_axi(Mesh &mesh, AxiMaster &axi) {
    const AxiMaster::Places &at = axi.at;
    if (!axi.is_open) {
        axi.rested += axi.rested < INTERRUPT_DELAY;
        mesh.answered |= axi.rested == INTERRUPT_DELAY && axi.out(at.interrupt);
        return;
    }
    axi.rested = 0;
    bool is_written = axi.out(at.bvalid), is_read = axi.out(at.rvalid);
    axi.takes_aw = axi.out(at.awready), axi.takes_w = axi.out(at.wready), axi.takes_ar = axi.out(at.arready);
    if (!is_written && !is_read)
        return;
    axi.refused += is_written ? axi.out(at.bresp) != 0 : axi.out(at.rresp) != 0;
    if (is_read)
        axi.answers.push_back(axi.out(at.rdata));
    mesh.answered |= is_read;
    axi.is_open = false;
    axi.queue.pop_front();
}

void Mesh::exchange() {
    for (auto &link : links)
        exchange_link(*link, cycle);
    for (auto &s : sources) {
        if (!s->offered)
            s->offered = !s->queue.empty() && !s->gap.hit();
        static const Words nothing{};
        s->to->drive(s->port, s->offered, s->offered ? s->queue.front().words : nothing);
    }
    for (auto &s : sinks)
        s->from->accept(s->port, !s->is_held(cycle) && !s->stall.hit());
    for (auto &p : producers)
        exchange_producer(*p);
    for (auto &axi : axis)
        exchange_axi(*axi);
    for (auto &ddr : ddrs)
        ddr->exchange(cycle);
}

void Mesh::transfer() {
    for (size_t i = 0; i < links.size(); i++)
        transfer_link(*this, *links[i], i);
    for (auto &s : sources)
        if (s->offered && s->to->inputs[s->port].ready) {
            s->queue.pop_front();
            s->offered = false;
        }
    for (auto &s : sinks) {
        Stream &out = s->from->outputs[s->port];
        if (!out.valid || !out.ready)
            continue;
        Item item{cycle, {}};
        memcpy(item.words, out.words, sizeof(Words));
        s->log.push_back(item);
        woken |= s->last_bit < 0 || bit_of(out.words, s->last_bit);
    }
    for (auto &p : producers)
        transfer_producer(*p);
    for (auto &axi : axis)
        transfer_axi(*this, *axi);
    for (auto &ddr : ddrs)
        ddr->transfer(cycle);
}

void Mesh::step() {
    exchange();
    transfer();
    for (auto &group : groups)
        group->tick();
    for (auto &p : pulses)
        p.step();
    if (waveform)
        waveform_klass->sample_waveform(waveform, cycle);
    cycle++;
}

bool Mesh::has_work() const {
    for (auto &i : instances)
        if (i->awake)
            return true;
    for (auto &link : links) {
        bool is_late = !link->pipe.empty() && link->pipe.front().cycle + link->latency > cycle;
        bool is_taken = !link->pipe.empty() && link->to->inputs[link->to_port].ready;
        if (is_late || is_taken || (link->blocked && link->from->outputs[link->from_port].valid))
            return true;
    }
    for (auto &s : sources)
        if (!s->queue.empty() && s->to->inputs[s->port].ready)
            return true;
    for (auto &axi : axis)
        if (!axi->queue.empty() || axi->out(axi->at.interrupt))
            return true;
    for (auto &s : sinks)
        if (s->from->outputs[s->port].valid)
            return true;
    for (auto &ddr : ddrs)
        if (ddr->has_work())
            return true;
    return false;
}

}  // namespace

extern "C" {

Mesh *mesh_new() { return new Mesh; }

void mesh_free(Mesh *mesh) {
    if (mesh->waveform)
        mesh->waveform_klass->close_waveform(mesh->waveform);
    delete mesh;
}

// A new instance has seen one edge, with all inputs 0.
int mesh_instance(Mesh *mesh, const Klass *klass) {
    auto has_room = [&](auto &group) { return group->klass == klass && group->members.size() < size_t(klass->lanes); };
    auto found = std::find_if(mesh->groups.begin(), mesh->groups.end(), has_room);
    if (found == mesh->groups.end())
        found = mesh->groups.insert(found, std::make_unique<Group>(klass));
    Group &group = **found;
    mesh->instances.push_back(std::make_unique<Instance>(&group));
    klass->tick(group.top, group.ends.data(), 1u << (group.members.size() - 1));
    return mesh->instances.size() - 1;
}

int mesh_link(Mesh *mesh, int from, int from_port, int to, int to_port, uint32_t latency, uint32_t depth, int last_bit) {
    auto link = std::make_unique<Link>();
    link->from = mesh->instances[from].get(), link->to = mesh->instances[to].get();
    link->from_port = from_port, link->to_port = to_port;
    link->latency = latency, link->depth = depth, link->last_bit = last_bit;
    mesh->links.push_back(std::move(link));
    return mesh->links.size() - 1;
}

void mesh_stall_link(Mesh *mesh, int link, uint32_t chance, uint64_t seed) {
    mesh->links[link]->stall.chance = chance;
    mesh->links[link]->stall.state = seed;
}

void mesh_fault(Mesh *mesh, int link, uint32_t kind, uint64_t at, uint32_t arg) {
    Fault fault{at, kind, arg};
    if (kind == SILENCE)
        mesh->links[link]->silences.push_back(fault);
    else
        mesh->links[link]->faults[at].push_back(fault);
}

void mesh_noise(Mesh *mesh, int link, uint32_t chance, uint64_t seed, uint32_t num_bits) {
    Noise &noise = mesh->links[link]->noise;
    noise.chance = chance, noise.random.state = seed, noise.num_bits = num_bits;
}

int mesh_source(Mesh *mesh, int to, int port, uint32_t chance, uint64_t seed) {
    auto source = std::make_unique<Source>();
    source->to = mesh->instances[to].get(), source->port = port;
    source->gap.chance = chance, source->gap.state = seed;
    mesh->sources.push_back(std::move(source));
    return mesh->sources.size() - 1;
}

void mesh_push(Mesh *mesh, int source, const uint32_t *words, int64_t num_items, int words_each) {
    for (int64_t i = 0; i < num_items; i++) {
        Item item{0, {}};
        memcpy(item.words, words + i * words_each, words_each * 4);
        mesh->sources[source]->queue.push_back(item);
    }
}

int64_t mesh_pending(Mesh *mesh, int source) { return mesh->sources[source]->queue.size(); }

int mesh_sink(Mesh *mesh, int from, int port, uint32_t chance, uint64_t seed, int last_bit) {
    auto sink = std::make_unique<Sink>();
    sink->from = mesh->instances[from].get(), sink->port = port;
    sink->stall.chance = chance, sink->stall.state = seed, sink->last_bit = last_bit;
    mesh->sinks.push_back(std::move(sink));
    return mesh->sinks.size() - 1;
}

void mesh_hold_sink(Mesh *mesh, int sink, uint64_t from, uint64_t count) {
    mesh->sinks[sink]->held_from = from, mesh->sinks[sink]->held_for = count;
}

int64_t mesh_take(Mesh *mesh, int sink, uint64_t *cycles, uint32_t *words, int words_each, int64_t room) {
    auto &log = mesh->sinks[sink]->log;
    int64_t count = std::min<int64_t>(room, log.size());
    for (int64_t i = 0; i < count; i++) {
        cycles[i] = log[i].cycle;
        memcpy(words + i * words_each, log[i].words, words_each * 4);
    }
    log.erase(log.begin(), log.begin() + count);
    return count;
}

int64_t mesh_held(Mesh *mesh, int sink) { return mesh->sinks[sink]->log.size(); }

int mesh_producer(Mesh *mesh, int node, int request_port, int payload_port) {
    auto producer = std::make_unique<Producer>();
    producer->node = mesh->instances[node].get();
    producer->request_port = request_port, producer->payload_port = payload_port;
    mesh->producers.push_back(std::move(producer));
    return mesh->producers.size() - 1;
}

void mesh_memory(Mesh *mesh, int producer, uint64_t address, const uint8_t *bytes, uint64_t size) {
    auto &memory = mesh->producers[producer]->memory;
    if (memory.size() < address + size)
        memory.resize(address + size);
    memcpy(memory.data() + address, bytes, size);
}

// `places`: as AxiMaster::Places.
int mesh_axi(Mesh *mesh, int node, const int32_t *places) {
    auto axi = std::make_unique<AxiMaster>();
    axi->node = mesh->instances[node].get();
    memcpy(&axi->at, places, sizeof axi->at);
    mesh->axis.push_back(std::move(axi));
    return mesh->axis.size() - 1;
}

// Queues accesses {is_write, address, word}.
void mesh_axi_put(Mesh *mesh, int axi, const uint32_t *accesses, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        mesh->axis[axi]->queue.push_back({accesses[3 * i], accesses[3 * i + 1], accesses[3 * i + 2]});
}

// Takes what reads were answered with, in order; returns how many.
int64_t mesh_axi_answers(Mesh *mesh, int axi, uint32_t *into, int64_t room) {
    auto &answers = mesh->axis[axi]->answers;
    int64_t count = std::min<int64_t>(room, answers.size());
    std::copy_n(answers.begin(), count, into);
    answers.erase(answers.begin(), answers.begin() + count);
    return count;
}

int64_t mesh_axi_pending(Mesh *mesh, int axi) { return mesh->axis[axi]->queue.size(); }

uint32_t mesh_axi_refused(Mesh *mesh, int axi) { return mesh->axis[axi]->refused; }
// A DDR's `rate` is in 1/256 bytes per cycle.
int mesh_ddr(Mesh *mesh, uint32_t latency, uint32_t row_miss, uint64_t rate, uint64_t size) {
    auto ddr = std::make_unique<Ddr>();
    ddr->latency = latency, ddr->row_miss = row_miss, ddr->rate = rate, ddr->size = size;
    mesh->ddrs.push_back(std::move(ddr));
    return mesh->ddrs.size() - 1;
}

// `places`: ReadPlaces or WritePlaces.
int mesh_ddr_port(Mesh *mesh, int ddr, int instance, int is_read, const int32_t *places, uint32_t chance, uint64_t seed) {
    Instance &it = *mesh->instances[instance];
    auto port = std::make_unique<DdrPort>();
    port->is_read = is_read;
    port->out = it.signals_out.data(), port->in = it.signals_in.data(), port->awake = &it.awake;
    port->stall.chance = chance, port->stall.state = seed;
    if (is_read)
        memcpy(&port->r, places, sizeof(ReadPlaces));
    else
        memcpy(&port->w, places, sizeof(WritePlaces));
    mesh->ddrs[ddr]->ports.push_back(std::move(port));
    return mesh->ddrs[ddr]->ports.size() - 1;
}

void mesh_ddr_write(Mesh *mesh, int ddr, uint64_t address, const uint8_t *bytes, uint64_t size) {
    mesh->ddrs[ddr]->image.write(address, bytes, size);
}

void mesh_ddr_read(Mesh *mesh, int ddr, uint64_t address, uint8_t *into, uint64_t size) {
    mesh->ddrs[ddr]->image.read(address, into, size);
}

void mesh_ddr_counts(Mesh *mesh, int ddr, int port, PortCounts *counts) { *counts = mesh->ddrs[ddr]->ports[port]->counts; }

void mesh_peek(Mesh *mesh, int instance, int at, uint32_t *words, int num_words) {
    memcpy(words, mesh->instances[instance]->signals_out.data() + at, num_words * 4);
}

void mesh_counts(Mesh *mesh, int link, LinkCounts *counts) { *counts = mesh->links[link]->counts; }

// From now on counts the cycles in which a signal is high, and leads it to bit `to_bit` of an input.
int mesh_lead_pulses(Mesh *mesh, int from, int at, int to, int to_at, int to_bit) {
    mesh->pulses.push_back(Pulses{mesh->instances[from].get(), at, 0, mesh->instances[to].get(), to_at, to_bit});
    return mesh->pulses.size() - 1;
}

uint64_t mesh_pulses(Mesh *mesh, int number) { return mesh->pulses[number].count; }

int64_t mesh_records(Mesh *mesh, Record *into, int64_t room) {
    int64_t count = std::min<int64_t>(room, mesh->records.size());
    std::copy_n(mesh->records.begin(), count, into);
    mesh->records.erase(mesh->records.begin(), mesh->records.begin() + count);
    return count;
}

uint64_t mesh_cycle(Mesh *mesh) { return mesh->cycle; }

// Runs until `limit` cycles have passed, or nothing can move any more, or (with `wake`) a sink took something
// or software has something to do. Returns 0: limit, 1: nothing moves, 2: woken, 3: answered or interrupted.
int mesh_run(Mesh *mesh, uint64_t limit, int wake) {
    mesh->woken = mesh->answered = false;
    for (uint64_t i = 0; i < limit; i++) {
        mesh->step();
        if (wake && mesh->woken)
            return 2;
        if (wake && mesh->answered)
            return 3;
        if (!mesh->has_work())
            return 1;
    }
    return 0;
}

int mesh_open_waveform(Mesh *mesh, const int *instances, const char **names, int count) {
    std::vector<void *> tops;
    mesh->waveform_klass = mesh->instances[instances[0]]->group->klass;
    if (!mesh->waveform_klass->open_waveform)
        return 0;
    for (int i = 0; i < count; i++)
        tops.push_back(mesh->instances[instances[i]]->group->top);
    mesh->waveform = mesh->waveform_klass->open_waveform(tops.data(), names, count);
    return 1;
}

int64_t mesh_take_waveform(Mesh *mesh, char *into, int64_t room) {
    return mesh->waveform_klass->take_waveform(mesh->waveform, into, room);
}
}

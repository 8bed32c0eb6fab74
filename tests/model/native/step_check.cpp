// The native step without Python: every family the processor runs, on a random tiny model. Prints one line a check;
// status 0 when all are good. Says the families on the first line, best first; with any argument only that.
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "abi.h"
#include "checks.h"
#include "team.h"

extern "C" {
const char* tandem_family(int index);
void* tandem_team(int threads);
void tandem_disband(void* team);
void tandem_step(int family, const Model* model, const Pass* pass, void* team);
}

#define LANES_OF(name) namespace name { void check_lanes(); }
LANES_OF(portable)
#if defined(__x86_64__)
LANES_OF(avx2)
LANES_OF(avx512)
#elif defined(__aarch64__)
LANES_OF(neon)
LANES_OF(neon_i8mm)
#endif

static int num_bad = 0;

bool check(const char* family, bool is_good, const char* what) {
    printf("%s  %s: %s\n", is_good ? "good" : "BAD ", family, what);
    fflush(stdout);
    num_bad += !is_good;
    return is_good;
}

namespace {

constexpr int WINDOW = 384, VOCAB = 112, MOST_ROWS = 64;

// --- a model ----------------------------------------------------------------------------------------------------

struct Tiny {
    Shape shape{2, 96, 160, 6, 2, 32, 0, 1e-5f};
    std::vector<std::vector<uint8_t>> blocks;
    std::vector<std::vector<float>> norms;
    std::vector<Layer> layers;
    std::vector<float> embedding;
    Model model{};
    Random random;

    Tiny(int bits, bool has_halves, uint64_t seed) : random{seed} {
        shape.turn_halves = has_halves;
        const int wide = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
        for (int l = 0; l < shape.layers; l++)
            layers.push_back({matrix(wide, shape.hidden, bits), matrix(shape.hidden, shape.heads * shape.head_dim, bits),
                              matrix(2 * shape.feed_forward, shape.hidden, bits), matrix(shape.hidden, shape.feed_forward, bits),
                              norm(shape.hidden), norm(shape.hidden), has_halves ? norm(shape.head_dim) : nullptr,
                              has_halves ? norm(shape.head_dim) : nullptr});
        model = {shape, layers.data(), norm(shape.hidden), matrix(VOCAB, shape.hidden, bits == 4 ? 8 : bits)};
        for (int i = 0; i < VOCAB * shape.hidden; i++) embedding.push_back(random.spread());
    }

    // About as large as a trained model's. 4 and 8 bits: a scale, and a minimum that centres the integers.
    Matrix matrix(int outputs, int inputs, int bits) {
        const int size = bits == 4 ? 320 : bits == 8 ? 576 : 1024;
        std::vector<uint8_t> data((size_t)outputs / 16 * inputs / 32 * size);
        for (size_t block = 0; block < data.size(); block += size) {
            for (int i = 0; i < size; i++) data[block + i] = (uint8_t)random.below(256);
            for (int i = 0; bits == 16 && i < 512; i++) {  // sign, 2^-6 or 2^-5, the fraction as it came
                const uint16_t number = (uint16_t)(random.below(2) << 15 | (121 + random.below(2)) << 7 | random.below(128));
                memcpy(&data[block + 2 * i], &number, 2);
            }
            for (int o = 0; bits < 16 && o < 16; o++) {
                const uint16_t scale = (uint16_t)((bits == 4 ? 6 : 2) << 10 | random.below(1024));  // 2^-9, 2^-13, to twice
                const uint16_t minimum = (uint16_t)(0x8000 | (scale + ((bits == 4 ? 3 : 7) << 10)));
                memcpy(&data[block + size - 64 + 2 * o], &scale, 2);
                memcpy(&data[block + size - 32 + 2 * o], &minimum, 2);
            }
        }
        blocks.push_back(std::move(data));
        return {blocks.back().data(), outputs, inputs, bits, 0};
    }

    const float* norm(int width) {
        std::vector<float> weights;
        for (int i = 0; i < width; i++) weights.push_back(1.0f + 0.5f * random.spread());
        norms.push_back(std::move(weights));
        return norms.back().data();
    }
};

// --- passes -----------------------------------------------------------------------------------------------------

struct Sequence {
    std::vector<std::vector<uint16_t>> kv;  // of each layer

    explicit Sequence(const Shape& shape)
        : kv(shape.layers, std::vector<uint16_t>((size_t)2 * shape.kv_heads * WINDOW * shape.head_dim)) {}
};

struct Rows {
    Sequence* sequence;
    int start;
    std::vector<int> tokens, parents;  // without parents: a line
};

struct Bench {  // a family at work on a model
    const Tiny& tiny;
    int family;
    void* team;

    Bench(const Tiny& tiny, int family, int threads) : tiny(tiny), family(family), team(tandem_team(threads)) {}
    ~Bench() { tandem_disband(team); }
    Bench(const Bench&) = delete;

    // Logits of every row.
    std::vector<float> run(const std::vector<Rows>& all) const {
        const Shape& shape = tiny.shape;
        std::vector<std::vector<uint16_t*>> kv;
        std::vector<Span> spans;
        std::vector<int32_t> parents, wanted;
        std::vector<float> turns, stream;
        kv.reserve(all.size());
        for (const Rows& rows : all) {
            const int count = (int)rows.tokens.size(), first = (int)parents.size();
            kv.emplace_back();
            for (auto& layer : rows.sequence->kv) kv.back().push_back(layer.data());
            spans.push_back({kv.back().data(), WINDOW, rows.start, first, count, 0});
            std::vector<int> depth;
            for (int r = 0; r < count; r++) {
                const int parent = rows.parents.empty() ? (r ? r - 1 : 0) : rows.parents[r];
                depth.push_back(r ? depth[parent] + 1 : 0);
                parents.push_back(parent), wanted.push_back(first + r);
                for (int i = 0; i < shape.head_dim; i += 2) {
                    const double angle = (rows.start + depth[r]) * pow(10000.0, -(double)i / shape.head_dim);
                    turns.push_back((float)cos(angle)), turns.push_back((float)sin(angle));
                }
                const float* from = &tiny.embedding[(size_t)rows.tokens[r] * shape.hidden];
                stream.insert(stream.end(), from, from + shape.hidden);
            }
        }
        const int count = (int)parents.size();
        std::vector<float> logits((size_t)count * VOCAB);
        const Pass pass{count, (int)spans.size(), count, 0, spans.data(), parents.data(), turns.data(), wanted.data(),
                        stream.data(), logits.data()};
        tandem_step(family, &tiny.model, &pass, team);
        return logits;
    }

    // Logits of all of `tokens`, read `size` at a time.
    std::vector<float> read(Sequence& sequence, const std::vector<int>& tokens, int size, int start = 0) const {
        std::vector<float> logits;
        for (size_t at = 0; at < tokens.size(); at += size) {
            const size_t end = at + size < tokens.size() ? at + size : tokens.size();
            const auto some = run({{&sequence, start + (int)at, {tokens.begin() + at, tokens.begin() + end}, {}}});
            logits.insert(logits.end(), some.begin(), some.end());
        }
        return logits;
    }
};

std::vector<int> some_tokens(int count, uint64_t seed) {
    Random random{seed};
    std::vector<int> tokens;
    for (int i = 0; i < count; i++) tokens.push_back(random.below(VOCAB));
    return tokens;
}

template <class T>
bool same_bits(const T* a, const T* b, size_t count) {
    return memcmp(a, b, count * sizeof(T)) == 0;
}

template <class T>
std::vector<T> part(const std::vector<T>& all, size_t from, size_t to) {
    return {all.begin() + from, all.begin() + to};
}

// --- what is promised -------------------------------------------------------------------------------------------

// Root mean square of the distance, in spreads of what is expected.
double distance(const std::vector<float>& found, const std::vector<float>& expected) {
    double sum = 0, squares = 0, apart = 0;
    for (size_t i = 0; i < found.size(); i++) {
        sum += expected[i], squares += (double)expected[i] * expected[i];
        apart += ((double)found[i] - expected[i]) * ((double)found[i] - expected[i]);
    }
    const double n = (double)found.size();
    return sqrt((apart / n) / (squares / n - sum / n * sum / n));
}

// 1 to 20, 31, 42, 53 and 64 rows of one sequence, with up to seven of another's beside them, before or behind.
bool rows_are_their_own(const Bench& bench) {
    const Shape& shape = bench.tiny.shape;
    const auto tokens = some_tokens(30 + MOST_ROWS, 1), others = some_tokens(270 + 7, 2);
    Sequence begun(shape), lone(shape), other_begun(shape), other_lone(shape);
    bench.read(begun, part(tokens, 0, 30), 16), bench.read(other_begun, part(others, 0, 270), 16);
    lone = begun, other_lone = other_begun;
    const auto alone = bench.read(lone, part(tokens, 30, tokens.size()), 1, 30);
    const auto other_alone = bench.read(other_lone, part(others, 270, others.size()), 1, 270);
    for (int rows = 1; rows <= MOST_ROWS; rows += rows < 20 ? 1 : 11) {
        Sequence mine = begun, theirs = other_begun;
        const int beside = MOST_ROWS - rows < 7 ? MOST_ROWS - rows : 7;
        std::vector<Rows> blocks{{&mine, 30, part(tokens, 30, 30 + rows), {}}};
        if (beside) blocks.insert(rows % 2 ? blocks.end() : blocks.begin(), {&theirs, 270, part(others, 270, 270 + beside), {}});
        const auto logits = bench.run(blocks);
        const size_t first = rows % 2 ? 0 : beside, other = rows % 2 ? rows : 0;
        if (!same_bits(&logits[first * VOCAB], alone.data(), (size_t)rows * VOCAB)) return false;
        if (!same_bits(logits.data() + other * VOCAB, other_alone.data(), (size_t)beside * VOCAB)) return false;
        for (int l = 0; l < shape.layers; l++)
            for (int head = 0; head < 2 * shape.kv_heads; head++) {
                const size_t at = (size_t)head * WINDOW * shape.head_dim;
                if (!same_bits(&mine.kv[l][at], &lone.kv[l][at], (size_t)(30 + rows) * shape.head_dim)) return false;
            }
    }
    return true;
}

bool paths_of_trees_are_read_alone(const Bench& bench) {
    for (int before : {1, 16, 255, 290}) {
        Random random{(uint64_t)before};
        const int count = 6 + random.below(12);
        const auto prompt = some_tokens(before, 3), guesses = some_tokens(count, 4);
        std::vector<int> parents{0};
        for (int r = 1; r < count; r++) parents.push_back(random.below(r));
        Sequence begun(bench.tiny.shape);
        bench.read(begun, prompt, 16);
        Sequence tree = begun;
        const auto logits = bench.run({{&tree, before, guesses, parents}});
        for (int leaf = 0; leaf < count; leaf++) {
            std::vector<int> path, tokens;
            for (int at = leaf; at; at = parents[at]) path.insert(path.begin(), at);
            path.insert(path.begin(), 0);
            for (int at : path) tokens.push_back(guesses[at]);
            Sequence line = begun;
            const auto alone = bench.read(line, tokens, 1, before);
            for (size_t d = 0; d < path.size(); d++)
                if (!same_bits(&logits[(size_t)path[d] * VOCAB], &alone[d * VOCAB], VOCAB)) return false;
        }
    }
    return true;
}

// One row at a time and eleven at a time, with threads that are awake, and with some that fell asleep.
bool threads_change_nothing(const Tiny& tiny, int family, const std::vector<float>& expected) {
    constexpr int ROWS = 100;
    const auto tokens = part(some_tokens(300, 5), 0, ROWS);
    for (int threads = 1; threads <= 4; threads++) {
        Bench bench(tiny, family, threads);
        Sequence sequence(tiny.shape);
        for (int at = 0; at < ROWS;) {
            const int rows = at % 2 ? 11 : 1, end = at + rows < ROWS ? at + rows : ROWS;
            if (at % 3 == 0) usleep(2000);
            const auto logits = bench.run({{&sequence, at, part(tokens, at, end), {}}});
            if (!same_bits(logits.data(), &expected[(size_t)at * VOCAB], logits.size())) return false;
            at = end;
        }
    }
    return true;
}

bool broken_rows_show(const Tiny& tiny, int family) {
    Tiny broken = tiny;
    for (int i = 0; i < tiny.shape.hidden; i++) broken.embedding[3 * tiny.shape.hidden + i] = NAN;
    Bench bench(broken, family, 2);
    Sequence sequence(tiny.shape), other(tiny.shape);
    const auto logits = bench.run({{&sequence, 0, {5, 3}, {}}, {&other, 0, {7}, {}}});
    for (int i = 0; i < VOCAB; i++)
        if (!std::isfinite(logits[i]) || !std::isnan(logits[VOCAB + i]) || !std::isfinite(logits[2 * VOCAB + i])) return false;
    return true;
}

// Everyone writes, everyone meets, everyone sees what all wrote; plain memory, as in a step.
bool teams_meet(int threads, int meetings) {
    struct Place {
        alignas(64) int written;
        bool saw_all;
    };
    struct Given {
        Team& team;
        int meetings;
        Place places[Team::MOST];
    };
    Team team(threads);
    Given given{team, meetings, {}};
    for (int call = 0; call < 5; call++) {
        if (call) usleep(2000);  // the helpers sleep
        team.run([](void* with, int thread) {
            Given& g = *static_cast<Given*>(with);
            g.places[thread].saw_all = true;
            for (int meeting = 1; meeting <= g.meetings; meeting++) {
                g.places[thread].written = meeting;
                g.team.meet();
                for (int other = 0; other < g.team.threads; other++) g.places[thread].saw_all &= g.places[other].written == meeting;
                g.team.meet();
            }
        }, &given);
        for (int thread = 0; thread < threads; thread++)
            if (!given.places[thread].saw_all || given.places[thread].written != meetings) return false;
    }
    return true;
}

void check_steps(const char* name, int family, int portable, int bits, bool has_halves) {
    const Tiny tiny(bits, has_halves, 7);
    const std::string with = " (" + std::to_string(bits) + " bits, " + (has_halves ? "halves and head norms)" : "pairs)");
    const auto say = [&](bool is_good, const std::string& what) { check(name, is_good, (what + with).c_str()); };
    const auto tokens = some_tokens(300, 5);  // more than a chunk of positions
    Bench bench(tiny, family, 2), slow(tiny, portable, 2);
    Sequence sequence(tiny.shape), slow_sequence(tiny.shape);
    const auto logits = bench.read(sequence, tokens, 16), expected = slow.read(slow_sequence, tokens, 16);
    const double apart = distance(logits, expected);
    say(apart < 0.01, "logits are " + std::to_string(apart) + " spreads from the portable ones");
    say(rows_are_their_own(bench), "a row's bits are its own, up to 64 rows");
    say(paths_of_trees_are_read_alone(bench), "a path of a tree is as if read alone");
    say(threads_change_nothing(tiny, family, logits), "1 to 4 threads, the same bits");
    say(broken_rows_show(tiny, family), "broken rows show, and no other");
}

}  // namespace

int main(int num_given, char**) {
    printf("families:");
    for (int family = 0; tandem_family(family); family++) printf(" %s", tandem_family(family));
    printf("\n");
    if (num_given > 1) return 0;
    for (int threads = 1; threads <= 4; threads++)
        check("team", teams_meet(threads, 300), ("meetings of " + std::to_string(threads)).c_str());
    const struct {
        const char* name;
        void (*check_lanes)();
    } lanes[] = {
#if defined(__x86_64__)
        {"avx2", avx2::check_lanes}, {"avx512", avx512::check_lanes},
#elif defined(__aarch64__)
        {"neon", neon::check_lanes}, {"neon_i8mm", neon_i8mm::check_lanes},
#endif
        {"portable", portable::check_lanes}};
    int portable = 0;
    while (strcmp(tandem_family(portable), "portable") != 0) portable++;
    for (int family = 0; tandem_family(family); family++) {
        for (const auto& each : lanes)
            if (strcmp(each.name, tandem_family(family)) == 0) each.check_lanes();
        check_steps(tandem_family(family), family, portable, 4, false);
        check_steps(tandem_family(family), family, portable, 8, true);
        check_steps(tandem_family(family), family, portable, 16, false);
    }
    printf(num_bad ? "%d checks failed\n" : "all good\n", num_bad);
    return num_bad ? 1 : 0;
}

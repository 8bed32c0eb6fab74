#include "team.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include <sched.h>

namespace {

constexpr int SPINS = 2000;        // at a barrier, before the core is offered to others: some tens of microseconds
constexpr int SPINS_BETWEEN = 4000;  // after a step, before a helper sleeps

void pause_briefly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb");  // `yield` costs nothing on most cores; this takes about as long as x86's pause
#endif
}

}  // namespace

struct Team::Inside {
    Team& team;
    std::vector<std::thread> helpers;
    std::atomic<int> arrived{0};
    std::atomic<unsigned> phase{0}, calls{0};
    Call call = nullptr;
    void* given = nullptr;
    std::mutex mutex;
    std::condition_variable called;

    explicit Inside(Team& team) : team(team) {
        for (int thread = 1; thread < team.threads; thread++) helpers.emplace_back([this, thread] { serve(thread); });
    }

    // What a helper is told it reads under the mutex, so a call made while it falls asleep wakes it, and what the caller
    // wrote before is seen. It is told nothing more before it has come to the meeting at the call's end, so one call each.
    void tell(Call what, void* with) {
        {
            std::lock_guard<std::mutex> lock(mutex);
            call = what, given = with;
            calls.fetch_add(1, std::memory_order_release);
        }
        called.notify_all();
    }

    void serve(int thread) {
        for (unsigned seen = 0;; seen++) {
            for (int turns = 0; turns < SPINS_BETWEEN && calls.load(std::memory_order_acquire) == seen; turns++)
                pause_briefly();
            std::unique_lock<std::mutex> lock(mutex);
            called.wait(lock, [&] { return calls.load(std::memory_order_acquire) != seen; });
            const Call what = call;
            void* const with = given;
            lock.unlock();
            if (what == nullptr) return;
            what(with, thread);
            team.meet();
        }
    }
};

Team::Team(int count) : threads(count), inside(new Inside(*this)) {}

Team::~Team() {
    inside->tell(nullptr, nullptr);
    for (auto& helper : inside->helpers) helper.join();
    delete inside;
}

void Team::run(Call call, void* given) {
    if (threads > 1) inside->tell(call, given);
    call(given, 0);
    meet();
}

// Right on machines that reorder: `arrived` counts by read-modify-writes that acquire and release, so the last to come
// has seen what all others wrote before they came, and its release of `phase` shows all of that, and the count at zero,
// to whoever acquires the new phase. Nobody is a phase behind: a thread takes `now` before it is counted (nothing moves
// above an acquire), and the phase cannot change until it has been. The count is set to zero while all others wait for
// the phase, so that store needs no order of its own.
void Team::meet() {
    if (threads == 1) return;
    const unsigned now = inside->phase.load(std::memory_order_acquire);
    if (inside->arrived.fetch_add(1, std::memory_order_acq_rel) == threads - 1) {
        inside->arrived.store(0, std::memory_order_relaxed);
        inside->phase.store(now + 1, std::memory_order_release);
        return;
    }
    for (int turns = 0; inside->phase.load(std::memory_order_acquire) == now; turns++)
        turns < SPINS ? pause_briefly() : (void)sched_yield();
}

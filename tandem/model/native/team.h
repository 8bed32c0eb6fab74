// Threads that work on one step together. Inside a step they meet at spin barriers, because a sleep costs more than
// the work between two of them; a thread that waits long yields its core, for whoever it waits for may need it.
// Between steps they spin for a moment and then sleep.
#pragma once

class Team {
   public:
    static constexpr int MOST = 64;
    typedef void (*Call)(void* given, int thread);

    const int threads;

    explicit Team(int count);  // 1 to MOST, the caller's thread included
    ~Team();

    // `call(given, thread)` on every thread, the caller's being 0. Returns when all are done.
    void run(Call call, void* given);

    // Returns when every thread of the team has come here.
    void meet();

   private:
    struct Inside;
    Inside* inside;
};

"""Scheduler of operations on sessions: queues, lanes, threads, deadlines, leases and commits.

An operation (`jobs.Operation`) states the work; this package decides when it runs, and on what thread. The package
knows nothing of functions, snapshots or JSON-RPC.

The life of a job
-----------------

Each row gives a state, the container of a job in that state, the code that moves the job to its next state, and the
lock for that move. "The lock" is `Threads.lock`. A `ThreadJob` has no session: it starts as ready, and is never
applied, committed or settled.

=========== ============================= =================================================== ==========================
State       Container                     Moved on by                                         Lock
=========== ============================= =================================================== ==========================
queued      `Queues._arrived`             the event loop at the end of its turn: `_admit`     the lock
admitted    `SessionQueue.jobs`           `_start_next`, when the session is free             the lock
ready       `Threads._ready`              the leader: `_work`. Or the event loop's thread,    none: a `SimpleQueue`
                                          for a quick job that came alone: `LoopDriver`
in a lane   `Lane._waiting`               the code that frees capacity: `_complete`,          the lock
                                          `_discard`, the watcher. The job is ready again
running     `PoolThread.job`              its thread: `_complete`. Or the watcher at the      the lock
                                          deadline: `_time_out`. The first of them wins
waiting     `Waiting._waiting`, without   a thread, when the coroutine has ended: running     the lock
            a thread                      again. Or the watcher at the deadline: ending. If
                                          the function is blamed before the coroutine
                                          starts: ready again, by `Waiting.give_back`
ending      `Waiting._ending`, answered   a thread, when the coroutine has ended:             the lock
                                          `Threads._take_back`. It resumes the session
left behind `Threads._stuck` has its      already complete, but still running. When its       the lock
            thread                        thread ends, the session resumes: `_discard`,
                                          `resume`
complete    `Queues.leave`                the same code, at once: applied. Or admitted        the lock
                                          again, if another worker holds the lease
applied     `Threads._done`               a thread without other work: `_finish_done`,        `_finishing`
                                          `Committer`
committed   the store, or refused by it   the same thread: `Queues._finish`                   `_finishing`, the lock
settled     that thread's batch           the same thread: `deliver`                          none
delivered   the caller's event loop       final state                                         none
=========== ============================= =================================================== ==========================

An operation starts when the previous operation of its session is *applied*, so it may build on uncommitted changes. If
that commit is refused, the session's state is invalid, and all operations that built on it are refused, too. A caller
gets a result only after it is settled.

The thread `Queues._keep_time` refuses jobs that wait too long as admitted or in a lane. A cancelled job leaves its
queue, or ends as if its deadline had passed.

Priorities
----------

Functions of all owners share one interpreter, so a worker measures each kind of job. Four rules use the measurements.
A wrong guess costs time but no correctness.

1. A quick kind (`Pace.is_quick`) runs at once, on the leader's thread or the event loop's.
2. Any other job needs capacity in its lane, where each owner has a share. A job that turns out to be slow while it runs
   takes its capacity then. Within an owner's share, kinds take turns. Kinds that aren't known to wait have a reserve.
3. A function that computes also needs capacity to compute. For a kind that isn't known to compute or to wait, a few
   jobs may run as trials (`Pace.may_start`).
4. While a function computes, threads switch more often (`Pace.share_interpreter`).

The order of locks
------------------

A thread that holds a lock may take only locks further down this list:

1. `Threads._finishing` serializes batches of commits, so that they reach the store in order. It is the only lock that
   is held during access to the store.
2. `Threads.lock` guards queues, lanes, threads, and `complete`. All threads, the event loop's included, hold it for
   microseconds. Code under it must not block.
3. `Leases._lock` guards a worker's tables of leases. The store is accessed outside of it.
4. The cache's lock is held during a lookup.

Toolpacks' functions run, and sessions are loaded, without a lock, because an interruption may end a function anywhere.
For the same reason `interruption` and `LoopDriver` use no lock, but a token that `list.pop` gives to one thread only.
"""

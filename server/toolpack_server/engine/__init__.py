"""When operations on sessions run, on which thread, in which order, and how they are committed.

An operation says what to do (`jobs.Operation`); this package decides when. It doesn't know what a function, a
snapshot or JSON-RPC is.

The life of a job
-----------------

Each line says where a job is in that state, who moves it on to one of the next, and what that takes. "The lock" is
`Threads.lock`. An errand waits for no session: it begins as ready, and isn't applied, committed and settled.

=========== ============================= =================================================== ==========================
State       The job is in                 Moved on by                                         Under
=========== ============================= =================================================== ==========================
queued      `Queues._arrived`             the event loop, at the end of its turn: `_admit`    the lock
admitted    `SessionQueue.jobs`           whoever ends what it waits for: `_start_next`       the lock
ready       `Threads._ready`              the leader: `_work`; the loop's thread if the job   nothing: a `SimpleQueue`
                                          came alone and is quick: `LoopDriver`
in a lane   `Lane._waiting`               whoever gives a place back: `_complete`,            the lock
                                          `_discard`, the watcher. It is ready again
running     `PoolThread.job`              its thread: `_complete`, or the watcher at its      the lock
                                          deadline: `_time_out`. The first one wins
waiting     `Waiting._waiting`, on no     a thread, when its coroutine has ended: it is       the lock
            thread                        running again; or the watcher, at its deadline:
                                          ending. If its function is blamed before its
                                          coroutine has begun, it is ready again:
                                          `Waiting.give_back`
ending      `Waiting._ending`: answered   a thread, when its coroutine has ended:             the lock
                                          `Threads._take_back`. It wakes the session
left behind `Threads._stuck`: its thread  complete already, but still running. At the end     the lock
                                          its thread wakes the session: `_discard`, `resume`
complete    `Queues.leave`                whoever has moved it there, at once; back to        the lock
                                          admitted if another worker holds the lease
applied     `Threads._done`               a thread that has nothing else to do:               `_finishing`
                                          `_finish_done`, `Committer`
committed   the store, or refused by it   the same thread: `Queues._finish`                   `_finishing`, the lock
settled     that thread's batch           the same thread: `deliver`                          nothing
delivered   the waiter's event loop       nobody any more                                     nothing
=========== ============================= =================================================== ==========================

An operation begins when the one before it in its session is *applied*: it may build upon what isn't committed yet. If
that commit is refused, the session's state is invalid, and what was built upon it is refused with it. Nobody hears of
a result before it is settled.

A job that waits too long as admitted or in a lane is refused by the thread that keeps time (`Queues._keep_time`). One
that is cancelled leaves its queue, or ends as if its deadline had passed.

Who goes first
--------------

Functions of all owners share one interpreter, so a worker watches what each kind of job does. Four rules follow from
that; where one of them is wrong, it costs time and nothing else.

1. A kind that is known to be quick (`Pace.is_quick`) runs at once, on the leader's thread or the event loop's.
2. Any other job needs a place in its lane, of which each owner has a share: before it starts, or, if it turns out to be
   slow while it runs, from then on. Within an owner kinds take turns; those that aren't known to wait have a reserve.
3. A function that computes needs a place to compute, too. Of a kind of which it isn't known whether it computes or
   waits, a few are tried (`Pace.may_start`).
4. While a function computes, threads give way to each other sooner (`Pace.share_interpreter`).

The order of the locks
----------------------

Whoever holds a lock takes only those below it:

1. `Threads._finishing`: one batch of commits at a time, so that they reach the store in their order. The only lock that
   is held while the store is asked.
2. `Threads.lock`: queues, lanes, threads, and what `complete` does. Held for microseconds by everybody, the event loop
   included: nothing under it may block.
3. `Leases._lock`: what a worker remembers of leases. The store is asked outside of it.
4. The lock of the cache, for as long as a value is looked up.

Toolpacks' functions run, and sessions are loaded, without any lock: an interruption may end a function anywhere. For
the same reason `interruption` and `LoopDriver` use none, but a token that `list.pop` gives to exactly one thread.
"""

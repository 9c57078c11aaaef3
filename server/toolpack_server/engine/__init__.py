"""Scheduler of operations on sessions: decides when each operation runs, on which thread, and when it is committed.

An *operation* (`jobs.Operation`) is the work that a request needs in one session, such as a call to a function. The
operations of one session run one after the other, in order of arrival. Operations of different sessions can run at the
same time. The engine treats all operations alike: it doesn't depend on functions, snapshots or JSON-RPC.

The parts of the engine
-----------------------

============================== =========================================================================================
Module                         Content
============================== =========================================================================================
`jobs`                         Jobs. A *job* is work for a thread, with a deadline and the future of its answer.
`queues`                       A queue for each session with work, and `SessionJob`, the job that runs an operation
`threads`                      The thread pool. One thread at a time, the *leader*, takes the ready jobs. The *watcher*,
                               a separate thread, checks the running jobs every 5 ms and ends them at their deadlines.
`pace`                         Measurements of each kind of job: is it quick, and does it compute or wait? The *kind* of
                               a call is its function's name.
`lanes`                        Limits on jobs of kinds that aren't quick. A job that must wait for its start is *in a
                               lane*.
`waiting`                      Calls of async functions, which await on shared event loops and use no thread meanwhile
`loop_driver`                  The thread of the server's event loop. It also runs a quick job that *came alone*, while
                               no session had any other work.
`pool_thread`, `interruption`  One thread of the pool, and the exception that ends its function at a deadline
`state`, `leases`, `commits`   The cached state of a session, the right to change it, and the writes to the store
`batcher`                      Requests that are handled together, such as the creation of sessions
============================== =========================================================================================

The life of a job
-----------------

For each state, this list gives the container of its jobs in brackets, and then the code that moves a job to the next
state. This code holds `Threads.lock`, unless the entry says otherwise. Most jobs pass through these states:

queued (`Queues._arrived`)
    The job has arrived in this turn of the event loop. At the end of the turn, `Queues._admit` admits all such jobs.
admitted (`SessionQueue.jobs`)
    The job waits for its session. When the session is free, `Queues._start_next` makes its first job ready.
ready (`Threads._ready`)
    The leader takes the job (`Threads._work`) without a lock, because the container is a `SimpleQueue`. A quick job
    that came alone skips this container, because the event loop's thread runs it (`LoopDriver`).
in a lane (`Lane._waiting`)
    The job waits for a slot. The code that frees the slot makes the job ready again: `Threads._complete`,
    `Threads._discard` or the watcher.
running (`PoolThread.job`)
    The job's thread completes the job when the work has ended (`Threads._complete`), or the watcher completes it at the
    deadline (`Threads._time_out`). Only the first of the two has an effect.
complete
    `Queues.leave` applies the result to the session's state at once. If another worker holds the session's lease, the
    job is admitted again instead.
applied (`Threads._done`)
    A thread without other work commits all applied jobs together (`Threads._finish_done`, `Committer`). It holds
    `Threads._finishing` instead of the lock.
committed
    The store has stored or refused the changes. The same thread settles the job (`Queues._finish`). It holds
    `Threads._finishing` and the lock.
settled (that thread's batch)
    The same thread sends the answer to the caller's event loop (`deliver`), without holding a lock.
delivered
    The caller has the answer. This is the final state.

Calls of async functions, and functions that miss their deadlines, can also be in these states:

waiting (`Waiting._waiting`)
    The job's coroutine runs or awaits on a shared loop, and the job uses no thread. When the coroutine has ended, a
    thread continues the job, so that the job is running again. If the deadline comes first, the watcher answers the
    job, and the job is ending. If the function was *blamed* for blocking its loop before this coroutine started, the
    job becomes ready again (`Waiting.give_back`).
ending (`Waiting._ending`)
    The watcher has answered the job, but its coroutine hasn't ended yet. When the coroutine ends, a thread resumes the
    session (`Threads._take_back`).
left behind (`Threads._stuck` contains its thread)
    The job is complete, but its function is still running. When the thread exits, the session resumes
    (`Threads._discard`, `Queues.resume`).

An operation starts when the previous operation of its session is *applied*, so it can build on uncommitted changes. If
the store refuses these changes, the session's state becomes invalid, and all operations that built on the state are
also refused. A caller receives a result only after its job is settled.

The thread of `Queues._keep_time` refuses jobs that have been admitted or in a lane for too long. A cancelled job leaves
its queue. If the job is already running, it ends in the same way as at a missed deadline.

A `ThreadJob` is work outside of sessions. So its first state is ready, and it is never applied, committed or settled.

Priorities
----------

Functions of all owners share one Python interpreter, which runs one thread at a time. So a worker measures each kind of
job, and gives priority to quick kinds. A wrong measurement can cost time, but never leads to a wrong result. There are
four rules:

1. A job of a quick kind (`Pace.is_quick`) runs at once, on the leader's thread or on the event loop's thread.
2. Any other job needs a slot in its lane. If a job of a quick kind turns out to be slow while it runs, it takes a slot
   at that moment. Each owner has a share of the slots, and within the share, kinds take turns. A lane also has a
   reserve of slots for kinds that aren't known to wait, so that functions that wait can't hold up other functions.
3. A function that computes also needs a slot in a second lane, for functions that compute. For a kind that isn't known
   to compute or to wait, a few jobs can start without this slot, as trials (`Pace.may_start`).
4. While a function computes, the interpreter switches threads more often (`Pace.share_interpreter`), so that other
   calls don't wait for it.

The order of locks
------------------

A thread that holds a lock must acquire only locks further down this list. Otherwise two threads could wait for each
other.

1. `Threads._finishing` lets one thread at a time commit a batch, so that batches reach the store in order. It is the
   only lock that is held during access to the store.
2. `Threads.lock` guards queues, lanes and threads, and calls of `Job.complete`. All threads, including the event
loop's,
   hold it only for microseconds, so code that holds it must not block.
3. `Leases._lock` guards a worker's tables of leases. It isn't held during access to the store.
4. The lock of the cache of session states (`Queues.cache`) is held during a lookup.

Toolpacks' functions run, and sessions are loaded, without a lock, because an interruption can end a function anywhere,
and the lock would stay held. For the same reason, `interruption` and `LoopDriver` use a token instead of a lock:
`list.pop` returns the token to exactly one of several threads.
"""

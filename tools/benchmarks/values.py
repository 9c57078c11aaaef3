"""The cost of estimating the values of the steps of many rollouts.

    python -m tools.benchmarks.values http://127.0.0.1:8000

An estimate needs forks of each step. They are measured twice: forks that end at once, and forks that follow the
solution. The program uses a running server with the toolpack `bank`, and closes the sessions that it creates.
"""

import asyncio
import time

import click

from toolpack_server import AsyncClient, rollouts

TASK = "bank/save-300"
LABELS = {"run": "benchmark-of-values"}


async def play(agent, _session):
    for _ in range(9):  # a rollout then has ten steps, with its start
        await agent.run_function("move_to_savings", {"amount": "1.00"})


async def measure(url, group, k):
    async with AsyncClient(url) as client:
        sessions = [
            each.session
            async for results in rollouts(client, [TASK], play, labels=LABELS, group=group)
            for each in results
        ]
        try:
            for finish in (None, "solution"):
                began, cpu_before = time.monotonic(), time.process_time()
                tree = {"k": k, "finish": finish}
                async for results in rollouts(client, [TASK], play, labels=LABELS, group=group, tree=tree):
                    errors = [each.error for each in results if each.error]
                    forks = sum(step.n for each in results if each.values for step in each.values.steps)
                seconds, client_cpu = time.monotonic() - began, time.process_time() - cpu_before
                print(
                    f"{finish}: {forks} forks in {seconds:.0f} s, {forks / seconds:.0f}/s; "
                    f"client {client_cpu:.0f} s; {errors}"
                )
        finally:
            for session in sessions:
                await client.close_session(labels={"values": session["session_id"]})
            await client.close_session(labels=LABELS)


@click.command()
@click.argument("url")
@click.option("--rollouts", "group", default=200, show_default=True, help="Number of rollouts.")
@click.option("--forks", "k", default=8, show_default=True, help="Number of forks of each step.")
def main(url, group, k):
    """Measure, and print the results."""
    asyncio.run(measure(url, group, k))


if __name__ == "__main__":
    main()

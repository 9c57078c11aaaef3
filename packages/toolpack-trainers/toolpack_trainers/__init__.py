"""Protocols of trainers, whose clients play tasks: Open Reward Standard, OpenEnv, NeMo Gym, and Harbor's folders."""

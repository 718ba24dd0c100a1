"""The oracle: random clusters and gangs, the engine's answer, and the real kube-scheduler's beside it."""

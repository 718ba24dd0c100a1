"""Startgate: gang admission and fair-share queues, with the scheduler that the cluster already has."""

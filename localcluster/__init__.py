"""A real Kubernetes control plane on this machine, for the demo, the tests and the benchmarks.

etcd, kube-apiserver, kube-controller-manager and kube-scheduler are the real programs; kwok plays
the kubelets of nodes that don't exist. Everything listens on loopback alone, and nothing outlives
whoever started it.
"""

"""A real Kubernetes on this machine for the tests: `make k8s-testbed`, `make k8s-testbed-down`.

Builds the Kubernetes binaries from Debian's source package, runs a control plane and one real node on loopback, and keeps
hundreds of simulated nodes beside it. Standard library only; touches its cache folder, its state folder, cgroups below
`/weft-testbed` and one bridge, and `down` takes all but the cache away again.
"""

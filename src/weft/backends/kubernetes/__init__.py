"""A Kubernetes cluster as an engine: a pod for each task.

`render` is a pure function from a job, its launch and `settings` to the objects that the API server is sent: `shared`
are those of the whole job, `pods` those of its tasks, `patch` merges what a person wrote of them, `groups` are
the marks by which other schedulers know a gang, and `names` says what everything is called.
"""

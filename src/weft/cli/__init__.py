"""The `weft` command: what a person types, shown as a person reads it.

It talks to the server through `weft.client` and never imports server code. Modules are loaded by the
command that needs them, so that the frequent ones answer in a blink; results go to standard output, and
everything said about them (states, hints, errors) to standard error.
"""

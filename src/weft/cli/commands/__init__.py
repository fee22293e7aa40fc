"""One module for each family of commands; `weft.cli.app` names them and loads the one that is asked for."""

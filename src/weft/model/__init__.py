"""What exists in Weft: resources, quantities, sizes, failures and the table of job states.

Everything here is data and pure functions over it; this room imports nothing else of Weft and does
no input or output. Resources at the edge are strict pydantic models, what moves inside is frozen.
"""

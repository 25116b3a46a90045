"""Made-up claims and rows of the tables that judge them."""


def made_row(variant="swiftkv-50", **values):
    return {"model": "mine", "variant": variant, **values}


def made_claim(how="cell", where=None, **keys):
    cell = {"artifact": "t", "column": "x", "where": {"role": "small", **(where or {})}}
    return {"id": "c", "text": "x", "place": "paper", how: cell, **keys}

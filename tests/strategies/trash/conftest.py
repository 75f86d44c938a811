from tests.support.trash import backend

__all__ = ["backend"]

"""A service per test."""

from service import service as service

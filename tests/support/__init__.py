"""Fakes and helpers of the tests: small classes that do what their names say."""

"""The conformance suite; `lmlab.conformance("lstm")` runs it on a system.

The verb has the name of this package. Its module imports this package first, so that no later
import of `lmlab.conformance.…` puts the package in the verb's place.
"""

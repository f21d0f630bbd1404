"""Code that the adapters of engines share: settings, namespaces, calls that never raise, counters.
Private."""

"""The local broker and the network of brokers: sessions, matching, routing."""

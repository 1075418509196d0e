CREATE TABLE staff (id TEXT PRIMARY KEY, clearance TEXT, changed TEXT);
INSERT INTO staff VALUES ('carol', 'secret', '2026-11-01T08:00:00Z'), ('dan', 'none', '2026-11-01T08:00:00Z');

package cdc

import "time"

// WithStep sets a failpoint.
func (o Options) WithStep(f func(string) error) Options { o.step = f; return o }

// Patient makes a relay wait for a sign from the server for longer than a busy
// machine may stand still.
func (o Options) Patient() Options { o.silent = time.Minute; return o }

// Quick shortens a follower's times, but for the one after which it gives up.
func (o FollowerOptions) Quick() FollowerOptions {
	o.times = times{gather: 5 * time.Millisecond, take: 2000, hold: 50 * time.Millisecond, silent: 5 * time.Second, ask: 2 * time.Second, giveUp: 30 * time.Second, stall: 7 * time.Second}
	return o
}

// Gathering makes a follower store so many messages at once, and wait for them.
func (o FollowerOptions) Gathering(d time.Duration, n int) FollowerOptions {
	o.times.gather, o.times.hold, o.times.take = d, d, n
	return o
}

package cdc

import "time"

// WithStep sets a failpoint.
func (o Options) WithStep(f func(string) error) Options { o.step = f; return o }

// Quick shortens a follower's times.
func (o FollowerOptions) Quick() FollowerOptions {
	o.times = times{gather: 5 * time.Millisecond, hold: 50 * time.Millisecond, silent: 5 * time.Second, ask: 2 * time.Second, stall: 7 * time.Second}
	return o
}

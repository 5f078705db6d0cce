package standby

import (
	"context"
	"time"

	"example.com/cellmart/platform/cellkit/cdc"
)

// Quick shortens the times between two looks.
func (o Options) Quick() Options { o.look = 50 * time.Millisecond; return o }

// Apply gives a source's changes to the applier as its follower does.
func (a *Applier) Apply(ctx context.Context, zone string, changes []cdc.Change, p cdc.Position) error {
	return a.sources[zone].apply(ctx, changes, p)
}

// Close ends a source's connection.
func (a *Applier) Close(zone string) { a.sources[zone].close() }

// Restart does to a source what a restart of the process does.
func (a *Applier) Restart(zone string) {
	a.sources[zone].close()
	a.sources[zone].reached = cdc.Position{}
}

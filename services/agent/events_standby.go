package agent

import (
	"context"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/platform/cellkit/standby"
)

// keepCopies runs the applier of what other cells own; nil where none is to run.
// The options have the database and the log.
func keepCopies(ctx context.Context, group *errgroup.Group, c Config, o standby.Options) *standby.Applier {
	if c.ApplierDSN == "" || c.ApplierDSN == "off" {
		return nil
	}
	o.Cell, o.DSN, o.Sources = c.Zone, c.ApplierDSN, map[string]func() (*nats.Conn, error){}
	for zone := range c.Peers {
		if zone != Global {
			o.Sources[zone] = func() (*nats.Conn, error) {
				return bus.ConnectZone(link.Dialer{Addr: c.LinkAddr}, zone, "standby", o.Log)
			}
		}
	}
	a := standby.New(o)
	group.Go(func() error { return a.Run(ctx) })
	return a
}

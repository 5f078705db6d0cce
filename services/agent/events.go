package agent

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/platform/cellkit/route"
	"example.com/cellmart/platform/cellkit/transfer"
	"example.com/cellmart/services/agent/agentapi"
	"example.com/cellmart/services/inventory/inventoryapi"
	"example.com/cellmart/services/user/userapi"
)

// bulletin tells the zone's processes what changes, over the zone's own NATS.
// What it can't tell they poll for.
type bulletin struct {
	nc      *nats.Conn // nil before the first connect
	changed chan struct{}
}

func newBulletin() *bulletin { return &bulletin{changed: make(chan struct{}, 1)} }

func (b *bulletin) connect(url, name string, log *slog.Logger) error {
	nc, err := nats.Connect(url, nats.Name(name), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1),
		nats.ReconnectWait(250*time.Millisecond), nats.Timeout(2*time.Second), nats.ReconnectBufSize(-1),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { log.Warn("nats", "error", err) }))
	b.nc = nc
	return err
}

func (b *bulletin) close() { b.nc.Close() }

// hear passes on what the zone's processes say of the table that they hold.
func (b *bulletin) hear(acks *route.Acks, log *slog.Logger) error {
	_, err := b.nc.Subscribe(route.SubjectAck, func(m *nats.Msg) {
		if err := acks.Parse(m.Data); err != nil {
			log.Debug("ack", "error", err)
		}
	})
	return err
}

// table pushes a new signed table.
func (b *bulletin) table(signed []byte) {
	if b.nc.IsConnected() {
		_ = b.nc.Publish(route.SubjectTable, signed) // lost: polled within 5 s
	}
}

// linksChanged asks for a bulletin now; it never blocks.
func (b *bulletin) linksChanged() {
	select {
	case b.changed <- struct{}{}:
	default:
	}
}

// links tells the states of the links each second and on change.
func (b *bulletin) links(ctx context.Context, status func() map[string]link.Status) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		if b.nc.IsConnected() {
			if body, err := json.Marshal(status()); err == nil {
				_ = b.nc.Publish(route.SubjectLinks, body)
				_ = b.nc.FlushTimeout(200 * time.Millisecond)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-b.changed:
		}
	}
}

// begins picks the messages that begin what a person asked for: a registration,
// an order (one for each of its sellers), a transfer between people. What follows
// from these, an order's payments too, isn't counted again.
func begins(m bus.Message) bool {
	switch m.Kind {
	case userapi.KindBegin, inventoryapi.KindReserve:
		return true
	case transfer.KindCredit:
		var b transfer.Body
		return m.Decode(&b) == nil && b.Kind != transfer.Sales
	}
	return false
}

func sentWays(asked map[string]bus.Asked) map[string]agentapi.Ways {
	out := make(map[string]agentapi.Ways, len(asked))
	for kind, n := range asked {
		out[kind] = agentapi.Ways{Local: n.Local, Messaged: n.Messaged, Begun: n.Begun}
	}
	return out
}

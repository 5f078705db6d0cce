// Package bustest is for tests of what uses the bus: a NATS server, a message
// through a consumer without one, and the outbox to look at.
//
//	NATS     a server with JetStream on loopback, to stop, restart and wipe
//	Deliver  one message through a consumer's transaction
//	Outbox   the rows of a slot
//	Pump     everything that is due, delivered to consumers until nothing is
package bustest

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats-server/v2/server"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/routing"
)

// NATS is a server that can be stopped and started again at the same address.
type NATS struct {
	URL  string
	dir  string
	port int
	s    *server.Server
}

// Server starts a server for the test and gives its URL.
func Server(t testing.TB) string {
	t.Helper()
	return NewNATS(t).URL
}

// NewNATS is Server for tests that break it.
func NewNATS(t testing.TB) *NATS {
	t.Helper()
	n := &NATS{dir: t.TempDir(), port: server.RANDOM_PORT}
	n.Start(t)
	t.Cleanup(func() { n.Stop() })
	return n
}

// Start starts a stopped server.
func (n *NATS) Start(t testing.TB) {
	t.Helper()
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: n.port, JetStream: true, StoreDir: n.dir, JetStreamMaxStore: 4 << 30,
		NoSigs: true, NoLog: true, NoSystemAccount: true, DisableShortFirstPing: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	go s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the NATS server did not come up in 10 s")
	}
	n.s, n.URL = s, s.ClientURL()
	if a := s.Addr(); a != nil {
		n.port = portOf(a)
	}
}

// Dir is the folder of the store, to break while the server is stopped.
func (n *NATS) Dir() string { return n.dir }

// Stop ends the server; a second time does nothing.
func (n *NATS) Stop() {
	if n.s != nil {
		n.s.Shutdown()
		n.s.WaitForShutdown()
		n.s = nil
	}
}

// Restart stops the server and starts it with what it has on disk.
func (n *NATS) Restart(t testing.TB) {
	t.Helper()
	n.Stop()
	n.Start(t)
}

// WipeStore restarts the server with an empty store: every stream and consumer
// is gone.
func (n *NATS) WipeStore(t testing.TB) {
	t.Helper()
	n.Stop()
	if err := os.RemoveAll(n.dir); err != nil {
		t.Fatal(err)
	}
	n.Start(t)
}

// Deliver runs one message through the consumer's transaction, and gives what
// became of it. A message without an ID gets that of its kind and key.
func Deliver(t testing.TB, c *bus.Consumer, m bus.Message) bus.Result {
	t.Helper()
	if m.ID == "" {
		m.ID = bus.MessageID(m.Kind, m.Key)
	}
	if m.Body == nil {
		m.Body = json.RawMessage("{}")
	}
	return c.Deliver(context.Background(), m)
}

// Row is one outbox row.
type Row struct {
	bus.Message
	Closed bool
	Due    bool // it has a relay note: it will be sent, or sent again
	Reply  json.RawMessage
}

// Outbox lists a slot's outbox by ID.
func Outbox(t testing.TB, pool *pgxpool.Pool, slot routing.Slot) []Row {
	t.Helper()
	return rows(t, pool, "WHERE o.slot = $1", slot)
}

// Due lists what a dispatcher would send now or later, over all slots: open
// requests, and replies that were never sent.
func Due(t testing.TB, pool *pgxpool.Pool) []Row {
	t.Helper()
	return rows(t, pool, "WHERE r.slot IS NOT NULL")
}

func rows(t testing.TB, pool *pgxpool.Pool, where string, args ...any) []Row {
	t.Helper()
	q, err := pool.Query(context.Background(), `SELECT o.slot, o.id, o.to_slot, o.service, o.kind, o.key, o.body, o.reply_service, o.reply_to,
			o.trace, coalesce(r.attempts, 0), o.closed_at IS NOT NULL, r.slot IS NOT NULL, o.reply
		FROM cell.outbox o LEFT JOIN cell.relay r ON r.slot = o.slot AND r.id = o.id `+where+" ORDER BY o.slot, o.id", args...)
	if err != nil {
		t.Fatal(err)
	}
	out, err := pgx.CollectRows(q, func(row pgx.CollectableRow) (r Row, err error) {
		err = row.Scan(&r.From, &r.ID, &r.To, &r.Service, &r.Kind, &r.Key, &r.Body, &r.ReplyService, &r.ReplyTo,
			&r.Trace, &r.Attempt, &r.Closed, &r.Due, &r.Reply)
		return r, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Pump delivers what is due to the consumer of its service, in the order of
// slots and IDs, until a round changes nothing; it stands for dispatcher, NATS
// and links of one cell in tests of handlers. super is the test's superuser
// pool (pgtest.DB.Super). It gives how many messages it delivered, and fails the
// test when one is parked or for another cell.
func Pump(t testing.TB, super *pgxpool.Pool, consumers ...*bus.Consumer) int {
	t.Helper()
	total := 0
	tried := map[string]bool{} // open requests that were delivered and still wait for their final reply
	for range 1000 {
		n := 0
		for _, r := range Due(t, super) {
			key := r.From.String() + "/" + r.ID
			if tried[key] && r.ReplyTo == "" {
				continue
			}
			tried[key] = true
			for _, c := range consumers {
				if c.Service() != r.Service {
					continue
				}
				if r.ReplyTo != "" { // a reply's note ends when it is published
					if _, err := super.Exec(context.Background(), "DELETE FROM cell.relay WHERE slot = $1 AND id = $2", r.From, r.ID); err != nil {
						t.Fatal(err)
					}
				}
				res := c.Deliver(context.Background(), r.Message)
				if res.Outcome != bus.Handled && res.Outcome != bus.Duplicate {
					t.Fatalf("%s from slot %d to %d: %s (%v)", r.ID, r.From, r.To, res.Outcome, res.Err)
				}
				n++
			}
		}
		if total += n; n == 0 {
			return total
		}
	}
	t.Fatal("messages without end")
	return total
}

func portOf(a net.Addr) int {
	if tcp, ok := a.(*net.TCPAddr); ok {
		return tcp.Port
	}
	return server.RANDOM_PORT
}

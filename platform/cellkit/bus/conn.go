package bus

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"example.com/cellmart/platform/cellkit/link"
)

// PokeSubject is the core NATS subject, inside a cell, that says "there is a new
// message in the outbox". It only saves waiting for the next look.
const PokeSubject = "cell.poke"

// Stream is the name of the stream, in each cell's NATS, of what goes to a cell.
func Stream(cell string) string { return "XOUT_" + cell }

// Subject is where a message of that kind to a service of a cell is published.
func Subject(cell, service, kind string) string { return "x." + cell + "." + service + "." + kind }

// Connect connects to the own zone's NATS, now or whenever it is there, for what
// isn't a message of the outbox. Only a malformed URL is an error.
func Connect(url, name string, log *slog.Logger) (*nats.Conn, error) {
	return connectOwn(url, name, log)
}

// ConnectZone is Connect to another zone's NATS, through the links.
func ConnectZone(d link.Dialer, zone, name string, log *slog.Logger) (*nats.Conn, error) {
	return connectCell(d, zone, name, log)
}

// connectOwn connects to the cell's own NATS, now or whenever it is there. Only
// a malformed URL is an error.
func connectOwn(url, name string, log *slog.Logger, more ...nats.Option) (*nats.Conn, error) {
	nc, err := nats.Connect(url, append(options(name, log), more...)...)
	if err != nil {
		return nil, fmt.Errorf("NATS_URL: %w", err)
	}
	return nc, nil
}

// connectCell connects to another cell's NATS through the links.
func connectCell(d link.Dialer, cell, name string, log *slog.Logger) (*nats.Conn, error) {
	// The address is never dialled: the dialer knows its target.
	return nats.Connect("nats://"+cell+":4222", append(options(name, log.With("source", cell)),
		nats.SetCustomDialer(d.Custom(cell, "nats", 2*time.Second)), nats.SkipHostLookup())...)
}

func options(name string, log *slog.Logger) []nats.Option {
	return []nats.Option{
		nats.Name(name),
		nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(250*time.Millisecond, 250*time.Millisecond),
		nats.Timeout(2 * time.Second),
		nats.IgnoreDiscoveredServers(), // an address learned from the server would go round the link
		nats.ReconnectBufSize(-1),      // say at once that it is down, keep nothing for later
		// A peer that went silent is found in at most 4 s; the link's own prober is usually faster.
		nats.PingInterval(2 * time.Second), nats.MaxPingsOutstanding(2),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				log.Info("nats connection lost", "error", err)
			}
		}),
		nats.ReconnectHandler(func(*nats.Conn) { log.Info("nats connected") }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { log.Warn("nats", "error", err) }),
	}
}

// validWords says whether a service or kind can be part of a subject.
func validWords(s string) bool {
	return s != "" && !strings.ContainsAny(s, " \t\r\n*>") && !strings.HasPrefix(s, ".") &&
		!strings.HasSuffix(s, ".") && !strings.Contains(s, "..")
}

package route

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"example.com/cellmart/platform/cellkit/env"
	"example.com/cellmart/platform/cellkit/obs"
	"example.com/cellmart/platform/routing"
)

// Subjects of the cell's own NATS.
const (
	SubjectTable = "route.table" // a signed table, when it's new
	SubjectLinks = "cell.links"  // the JSON of the agent's GET /links, each second and on change
)

// Options of a Follower. A part that is left empty is not used.
type Options struct {
	AgentURL  string            // http://host:port of the own agent
	NATSURL   string            // the cell's own NATS, if Conn is nil
	Conn      *nats.Conn        // used and not closed
	RedisAddr string            // host:port of the cell's own Redis
	Dir       string            // folder with snapshots
	Key       ed25519.PublicKey // control's; without it only the table of last resort
	Cells     []string          // for the table of last resort
	Process   string            // who acknowledges, one name per process and the same after a restart
	Interval  time.Duration     // between checks, default 5 s
	Log       *slog.Logger      // default: nothing is logged
	Metrics   *obs.Metrics      // default: nothing is shown
}

// ReadOptions reads the variables that all services of a zone share.
func ReadOptions(r *env.Reader) Options {
	o := Options{
		AgentURL:  r.String("AGENT_URL", "", "local API of the own zone's agent (http://host:port)"),
		NATSURL:   r.String("NATS_URL", "", "the own cell's NATS (nats://host:port)"),
		Dir:       r.String("ROUTE_DIR", "", "folder with the agent's snapshots of the route table"),
		RedisAddr: r.String("REDIS_ADDR", "", "the cell's Redis, host:port, which keeps the newest route table; empty = none"),
		Process:   ProcessName(r),
		Cells:     r.List("CELLS", "", "all cells, comma separated, for the time before the first table"),
	}
	if text := r.String("ROUTE_KEY", "", "control's public key (Ed25519, base64)"); text != "" {
		key, err := ParseKey(text)
		if err != nil {
			r.Fail("ROUTE_KEY", err.Error())
		}
		o.Key = key
	}
	for _, c := range o.Cells {
		if !routing.ValidName(c) {
			r.Fail("CELLS", fmt.Sprintf("has %q, which can't be a cell's name", c))
		}
	}
	return o
}

// ProcessName is the service's name and its internal address, which no two
// instances share and a restart keeps; a loopback or open address gets the
// host's name, in case a cell has several hosts.
func ProcessName(r *env.Reader) string {
	host, port, err := net.SplitHostPort(r.Look("INTERNAL_ADDR"))
	if err != nil {
		port = strconv.Itoa(os.Getpid())
	}
	if ip := net.ParseIP(host); host == "" || host == "localhost" || ip != nil && (ip.IsLoopback() || ip.IsUnspecified()) {
		host, _ = os.Hostname() // "" is as good as any name
	}
	return r.Service() + "@" + net.JoinHostPort(host, port)
}

// ParseKey reads an Ed25519 public key in base64.
func ParseKey(text string) (ed25519.PublicKey, error) {
	b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	if err != nil || len(b) != ed25519.PublicKeySize {
		return nil, errors.New("is not an Ed25519 public key in base64")
	}
	return b, nil
}

package agent

import (
	"fmt"
	"net"
	"strings"

	"example.com/cellmart/platform/cellkit/link"
)

// Global is the name of the global zone.
const Global = "global"

// who may open which target of a zone.
type who int

const (
	cells  who = iota // the agents of all cells
	agents            // the agents of all other zones
	edges             // the edge
)

// targets are all that a zone can offer to others.
var targets = map[string]who{
	"gateway":        cells,
	"gateway-public": edges,
	"nats":           agents,
	"agent":          agents,
	"control":        cells,
	"catalog":        cells,
	"search":         cells,
	"idgen":          cells,
}

// parsePairs reads "name=host:port,name=host:port". A target with several instances
// has host:port|host:port.
func parsePairs(list []string) (map[string]string, error) {
	out := map[string]string{}
	for _, item := range list {
		name, addr, ok := strings.Cut(item, "=")
		for one := range strings.SplitSeq(addr, "|") {
			_, _, err := net.SplitHostPort(one)
			ok = ok && err == nil
		}
		if !ok || name == "" {
			return nil, fmt.Errorf("has %q, not name=host:port", item)
		}
		if out[name] != "" {
			return nil, fmt.Errorf("names %q twice", name)
		}
		out[name] = addr
	}
	return out, nil
}

// allow gives each target of this zone the certificate names that may open it.
func allow(addrs, peers map[string]string) (map[string]link.Target, error) {
	out := map[string]link.Target{}
	for name, addr := range addrs {
		kind, ok := targets[name]
		if !ok {
			return nil, fmt.Errorf("names a target %q that nobody may open", name)
		}
		t := link.Target{Addr: addr}
		if kind == edges {
			t.Allow = append(t.Allow, link.EdgeName)
		}
		for zone := range peers {
			if kind == agents || kind == cells && zone != Global {
				t.Allow = append(t.Allow, link.AgentName(zone))
			}
		}
		out[name] = t
	}
	return out, nil
}

package edge

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/routing"
)

// ErrNoCell is the answer when no gateway can be reached.
var ErrNoCell = errs.New(errs.Unavailable, "NO_CELL", "no cell can be reached at the moment").After(time.Second)

// zone is a cell as the edge knows it.
type zone struct {
	name   string
	border string // host:port of its agent's border
	region string // may be empty
}

// parseCells reads c1=host:port,... and c1=region,... The order counts: it is
// the order of turns.
func parseCells(cells, regions []string) ([]zone, error) {
	var zones []zone
	for _, text := range cells {
		name, addr, ok := strings.Cut(text, "=")
		if _, _, err := net.SplitHostPort(addr); !ok || err != nil || !routing.ValidName(name) {
			return nil, fmt.Errorf("has %q, not cell=host:port", text)
		}
		if slices.ContainsFunc(zones, func(z zone) bool { return z.name == name }) {
			return nil, fmt.Errorf("has cell %s twice", name)
		}
		zones = append(zones, zone{name: name, border: addr})
	}
	if len(zones) == 0 {
		return nil, errors.New("names no cell")
	}
	for _, text := range regions {
		name, region, ok := strings.Cut(text, "=")
		i := slices.IndexFunc(zones, func(z zone) bool { return z.name == name })
		if !ok || region == "" || i < 0 {
			return nil, fmt.Errorf("has the region %q, not cell=region of a cell above", text)
		}
		zones[i].region = region
	}
	return zones, nil
}

// chooser decides which gateways to try.
type chooser struct {
	zones []zone
	turn  atomic.Uint64
}

// order lists the healthy zones (by their place) as they should be tried: those
// of the wished region (or the cell of that name), else the cell in the cookie,
// first; then the others in turn. A wish for a zone that isn't healthy, or that
// doesn't exist, is no error: any gateway serves anyone.
func (c *chooser) order(region, cookie string, healthy func(i int) bool) []int {
	first := int(c.turn.Add(1) % uint64(len(c.zones)))
	var near, far []int
	for n := range c.zones {
		i := (first + n) % len(c.zones)
		if !healthy(i) {
			continue
		}
		if c.zones[i].wished(region, cookie) {
			near = append(near, i)
		} else {
			far = append(far, i)
		}
	}
	return append(near, far...)
}

func (z zone) wished(region, cookie string) bool {
	if region != "" {
		return region == z.region || region == z.name
	}
	return cookie != "" && cookie == z.name
}

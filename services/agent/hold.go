package agent

import (
	"context"
	"net/http"
	"time"

	"example.com/cellmart/platform/cellkit/env"
	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/platform/cellkit/outputcommit"
	"example.com/cellmart/services/agent/agentapi"
	"example.com/cellmart/services/control/controlapi"
)

// The modes of output commit.
const (
	commitTimed  = "timed"
	commitStrict = "strict"
	commitOff    = "off"
)

func readCommit(r *env.Reader) string {
	mode := r.String("OUTPUT_COMMIT", commitTimed, "what becomes of outputs that a standby doesn't have yet: timed = they wait for 2 s, then the slot is marked uncovered; strict = they wait for ever; off = they don't wait")
	if mode != commitTimed && mode != commitStrict && mode != commitOff {
		r.Fail("OUTPUT_COMMIT", "is not timed, strict or off")
	}
	return mode
}

// openGate makes what holds the outputs; nil where none are held.
// The options have the database and the log.
func openGate(c Config, control *controlapi.Client, o outputcommit.Options) *outputcommit.Gate {
	if c.OutputCommit == commitOff {
		return nil
	}
	o.Cell, o.Strict, o.Ask = c.Zone, c.OutputCommit == commitStrict, map[string]outputcommit.Ask{}
	o.Mark = marks{cell: c.Zone, control: control}
	dialer := link.Dialer{Addr: c.LinkAddr}
	for zone := range c.Peers {
		if zone != Global {
			way := &http.Transport{DialContext: dialer.DialContext(zone, "agent"), MaxIdleConnsPerHost: 2, IdleConnTimeout: time.Minute}
			peer := &agentapi.Client{BaseURL: "http://" + zone, HTTP: &http.Client{Transport: way}}
			o.Ask[zone] = func(ctx context.Context, q outputcommit.Question) (outputcommit.Answer, error) {
				a, err := peer.Applied(ctx, agentapi.Question(q))
				return outputcommit.Answer(a), err
			}
		}
	}
	return outputcommit.New(o)
}

// marks are kept by control until cells' leases carry them.
type marks struct {
	cell    string
	control *controlapi.Client
}

// Mark implements outputcommit.Marker.
func (m marks) Mark(ctx context.Context, list []outputcommit.Mark) error {
	return m.control.SetMarks(ctx, controlapi.MarkChange{Cell: m.cell, Set: told(list)})
}

// Lift implements outputcommit.Marker.
func (m marks) Lift(ctx context.Context, list []outputcommit.Mark) error {
	return m.control.SetMarks(ctx, controlapi.MarkChange{Cell: m.cell, Lift: told(list)})
}

// Marks implements outputcommit.Marker.
func (m marks) Marks(ctx context.Context) ([]outputcommit.Mark, error) {
	all, err := m.control.Marks(ctx, m.cell)
	out := make([]outputcommit.Mark, len(all.Marks))
	for i, k := range all.Marks {
		out[i] = outputcommit.Mark(k.Mark)
	}
	return out, err
}

func told(list []outputcommit.Mark) []controlapi.Mark {
	out := make([]controlapi.Mark, len(list))
	for i, m := range list {
		out[i] = controlapi.Mark(m)
	}
	return out
}

package local

import (
	"fmt"
	"strings"
)

// Part is one process of the demo, with those that it started, as a soak sees it.
type Part struct {
	Name    string
	Alive   bool
	Started string // changes when it was started again
	Memory  int64  // PSS in bytes
	Limit   int64  // what it may have
}

// Limit is the memory that a part of a demo may have, in bytes: that of its
// container in compose.split.yaml, where the engine sees to it.
func Limit(name string) int64 {
	_, part, _ := strings.Cut(name, "/")
	mb := int64(192) // a service
	switch {
	case strings.HasSuffix(part, "postgres"):
		mb = 512
	case part == "nats":
		mb = 256
	case part == "redis" || part == "agent":
		mb = 128
	}
	return mb << 20
}

// Parts measures the memory of all processes.
func (s *State) Parts() ([]Part, error) {
	_, pids, err := s.spent()
	if err != nil {
		return nil, err
	}
	var out []Part
	for i := range s.Processes {
		p := &s.Processes[i]
		part := Part{Name: p.Name, Alive: p.Alive(), Started: fmt.Sprintf("%d/%d", p.PID, p.Start), Limit: Limit(p.Name)}
		if part.Alive {
			if part.Memory, err = PSS(pids[p.PID]); err != nil {
				return nil, fmt.Errorf("memory of %s: %w", p.Name, err)
			}
		}
		out = append(out, part)
	}
	return out, nil
}

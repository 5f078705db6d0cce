package route

import (
	"encoding/json"
	"fmt"
	"sync/atomic"
	"time"
)

// linkAge is how long link states count; the agent tells them each second.
const linkAge = 3 * time.Second

// LinkStatus is the state of the link to one zone, as the agent tells it.
type LinkStatus struct {
	Up      bool    `json:"up"`
	SinceMS float64 `json:"since_ms"` // how long it has been so
	RTTMS   float64 `json:"rtt_ms"`
}

// Links knows which other zones can be reached. The zero Links knows nothing.
type Links struct {
	state atomic.Pointer[linkState]
}

type linkState struct {
	links map[string]LinkStatus
	at    time.Time
}

// Up says whether the link to a zone is up. Not known (never heard of, or not
// for 3 s) means: try, with a bounded wait.
func (l *Links) Up(zone string) (up, known bool) {
	s := l.state.Load()
	if s == nil || time.Since(s.at) > linkAge {
		return false, false
	}
	v, ok := s.links[zone]
	return v.Up, ok
}

// All gives the last heard states and their age; the map must not be changed.
func (l *Links) All() (map[string]LinkStatus, time.Duration) {
	s := l.state.Load()
	if s == nil {
		return nil, 0
	}
	return s.links, time.Since(s.at)
}

// Update takes the JSON of GET /links.
func (l *Links) Update(b []byte) error {
	var m map[string]LinkStatus
	if err := json.Unmarshal(b, &m); err != nil {
		return fmt.Errorf("link states: %w", err)
	}
	l.state.Store(&linkState{links: m, at: time.Now()})
	return nil
}

// old says whether nothing was heard for longer than the agent's own interval.
func (l *Links) old() bool {
	s := l.state.Load()
	return s == nil || time.Since(s.at) > linkAge/2
}

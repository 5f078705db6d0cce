package agentapi

import "time"

// Sink is one that takes the zone's changes, as the relay last noted it (every
// few seconds). A detached one isn't waited for, and must copy.
type Sink struct {
	Sink   string    `json:"sink"`
	State  string    `json:"state"` // attached, detached
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since"`
	Stored string    `json:"stored,omitempty"` // the place of the WAL up to which it has said that it has all
}

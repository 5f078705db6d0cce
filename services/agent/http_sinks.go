package agent

import (
	"context"
	"time"

	"example.com/cellmart/services/agent/agentapi"
)

// sinks gives who takes the zone's changes; nil when nobody relays them here, or
// the database doesn't say so at once.
func (s *server) sinks(ctx context.Context) []agentapi.Sink {
	if s.relay == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	all, err := s.relay.Sinks(ctx)
	if err != nil {
		return nil
	}
	out := []agentapi.Sink{} // [] and not null when there are none
	for _, k := range all {
		shown := agentapi.Sink{Sink: k.Sink, State: k.State, Reason: k.Reason, Since: k.Since}
		if k.Stored != nil {
			shown.Stored = k.Stored.String()
		}
		out = append(out, shown)
	}
	return out
}

//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"
)

// covered waits until every slot has a standby that is in sync, then has cellctl
// compare all of them with their owners.
func covered(t testing.TB) {
	t.Helper()
	eventually(t, 2*time.Minute, "every slot has a standby in sync", func() (bool, string) {
		for cell, a := range sys.agents {
			own, err := a.Status(t.Context())
			if err != nil {
				return false, cell + ": " + err.Error()
			}
			if own.Database == nil {
				return false, cell + ": " + own.DatabaseError
			}
			inSync := 0
			for keeper, k := range sys.agents {
				s, err := k.Standby(t.Context())
				if err != nil {
					return false, keeper + ": " + err.Error()
				}
				for _, from := range s.Sources {
					if from.Source == cell {
						inSync += from.InSync
					}
				}
			}
			if own.Database.Owned == 0 || inSync != own.Database.Owned {
				return false, fmt.Sprintf("%d of %s's %d slots are", inSync, cell, own.Database.Owned)
			}
		}
		return true, ""
	})
	out, code := cellctlOut(t, "verify", "-o", "json")
	var r struct {
		Rows        int64 `json:"rows_compared"`
		Differences []any `json:"differences"`
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 || r.Rows == 0 || len(r.Differences) > 0 {
		t.Errorf("verify = %d, %v: %s", code, err, out)
	}
}

package agentapi

import (
	"fmt"
	"slices"

	"example.com/cellmart/platform/cellkit/id"
)

// PlannedJob is one job, in the cell that is to do it.
type PlannedJob struct {
	Cell string `json:"cell"`
	Plan string `json:"plan"`
	TransferJob
}

// PlanJobs says what has to be done where, of what the cells have of a transfer;
// nothing was begun yet.
func PlanJobs(transfer string, sides []Transfer, parked []ParkedTransfer, job TransferJob) ([]PlannedJob, error) {
	var out []PlannedJob
	var err error
	if job.Transfer, err = id.Parse(transfer); err != nil {
		return nil, err
	}
	for _, t := range sides {
		j := job
		switch s, d := t.Source, t.Dest; {
		case job.What == Reverse && d != nil:
			j.Slot = d.Slot
			out = append(out, PlannedJob{t.Cell, fmt.Sprintf("give back all that is left of %d %s from user %s (slot %s) to user %s, from their balance, else owed by them",
				d.Amount, d.Currency, d.To, d.Slot, d.From), j})
		case job.What == Cancel && s != nil:
			j.Slot = s.Slot
			out = append(out, PlannedJob{t.Cell, fmt.Sprintf("ask for %d %s back that are %s: the payee's slot decides, no money moves by this", s.Amount, s.Currency, s.State), j})
		case job.What == Retry && s != nil && (s.State == "FROZEN" || s.State == "CANCELLING"):
			j.Slot = s.Slot
			out = append(out, PlannedJob{t.Cell, fmt.Sprintf("ask the payee's slot again now for %d %s that are %s", s.Amount, s.Currency, s.State), j})
		}
	}
	if job.What != Retry {
		return out, nil
	}
	for _, p := range parked {
		if p.Transfer != transfer {
			continue
		}
		text := fmt.Sprintf("handle again %s, parked in slot %s: %s", p.Kind, p.Slot, p.Reason)
		if i := slices.IndexFunc(out, func(x PlannedJob) bool { return x.Cell == p.Cell && x.Slot == p.Slot }); i >= 0 {
			out[i].Plan += "; " + text
			continue
		}
		j := job
		j.Slot = p.Slot
		out = append(out, PlannedJob{p.Cell, text, j})
	}
	return out, nil
}

package agentapi

// Cover is what a cell knows of the standbys of its own slots, by the table it
// holds and by what the standbys' agents said last. A slot is covered when its
// standby has said within a few seconds that it's in sync at the slot's epoch.
type Cover struct {
	Slots     int       `json:"slots"`     // of this cell
	Uncovered int       `json:"uncovered"` // not known to be covered; the next two are among them
	None      int       `json:"none"`      // the table names no standby
	Unknown   int       `json:"unknown"`   // the standby didn't answer
	Standbys  []CoverBy `json:"standbys"`  // by name
}

// CoverBy is what one cell said of the slots of this one that it stands by for.
// Null is unknown: never answered, or nothing can be compared.
type CoverBy struct {
	Cell     string `json:"cell"`
	Slots    int    `json:"slots"`
	InSync   int    `json:"in_sync"`   // when it last answered
	LagMS    *int64 `json:"lag_ms"`    // by what the standby said
	LagBytes *int64 `json:"lag_bytes"` // WAL from what it has applied to the end here, when it was asked
	AgeMS    *int64 `json:"age_ms"`    // since it answered
	Error    string `json:"error,omitempty"`
}

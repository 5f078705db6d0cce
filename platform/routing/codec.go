package routing

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// A format is raised when the document gets fields that an older reader must not
// overlook; a reader refuses formats that it doesn't know. Format 2 is format 1
// with overrides, groups or both, and is only written when there are any, so
// that older readers keep reading what they understand.
const (
	plain     = 1
	withHomes = 2
)

// document is the table on the wire: compact JSON, cells by ordinal, slots as
// run lengths [count, owner's ordinal, standby's ordinal or 0, epoch], private
// slots as [slot, owner, standby, epoch], overrides as [user, slot] by user, groups
// by name. The run lengths, of which there may be thousands, are written and read
// by hand (rows.go), the rest by encoding/json.
type document struct {
	Format    int         `json:"format"`
	Version   int64       `json:"version"`
	Cells     []wireCell  `json:"cells"`
	Slots     [][4]int64  `json:"slots"` // empty here
	Private   [][4]int64  `json:"private"`
	Voters    []string    `json:"voters"`
	Overrides [][2]int64  `json:"overrides,omitempty"`
	Groups    []wireGroup `json:"groups,omitempty"`
}

type wireGroup struct {
	Name string `json:"name"`
	Slot Slot   `json:"slot"`
}

type wireCell struct {
	Name    string    `json:"name"`
	Ordinal int       `json:"ordinal"`
	Region  string    `json:"region"`
	Weight  int       `json:"weight"`
	Keys    []wireKey `json:"keys"`
}

type wireKey struct {
	ID  string `json:"id"`
	Key []byte `json:"key"`
}

// Encode gives the one form of the table in bytes: equal tables, equal bytes.
func (t *Table) Encode() []byte {
	d := document{Format: plain, Version: t.version, Cells: []wireCell{}, Slots: [][4]int64{}, Private: [][4]int64{}, Voters: append([]string{}, t.voters...)}
	if len(t.moved) > 0 || len(t.groups) > 0 {
		d.Format = withHomes
	}
	for _, c := range t.cells {
		w := wireCell{Name: c.Name, Ordinal: c.Ordinal, Region: c.Region, Weight: c.Weight, Keys: []wireKey{}}
		for _, k := range c.Keys {
			w.Keys = append(w.Keys, wireKey(k))
		}
		d.Cells = append(d.Cells, w)
	}
	for _, p := range t.private {
		d.Private = append(d.Private, [4]int64{int64(p.slot), t.ordinal(p.owner), t.ordinal(p.standby), int64(p.epoch)})
	}
	for _, user := range slices.Sorted(maps.Keys(t.moved)) {
		d.Overrides = append(d.Overrides, [2]int64{user, int64(t.moved[user].slot)})
	}
	for _, name := range slices.Sorted(maps.Keys(t.groups)) {
		d.Groups = append(d.Groups, wireGroup{name, t.groups[name]})
	}
	b, err := json.Marshal(d)
	if err != nil {
		panic(err) // a struct of numbers and words always marshals
	}
	return t.insertRuns(b)
}

func (t *Table) ordinal(place uint16) int64 {
	if place == 0 {
		return 0
	}
	return int64(t.cells[place-1].Ordinal)
}

// Decode reads what Encode wrote and nothing else: the content is checked as in
// Build, and bytes that Encode would write differently are refused, so that a
// table has one form and one checksum everywhere. Errors wrap ErrTable.
func Decode(b []byte) (*Table, error) {
	var d document
	rest, runs := cutRuns(b)
	if err := json.Unmarshal(rest, &d); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTable, err)
	}
	if d.Format < plain || d.Format > withHomes {
		return nil, fmt.Errorf("%w: format %d, this program knows up to %d", ErrTable, d.Format, withHomes)
	}
	spec := Spec{
		Version: d.Version, Voters: d.Voters, Private: make(map[Slot]Assignment, len(d.Private)),
		Overrides: make(map[int64]Slot, len(d.Overrides)), Groups: make(map[string]Slot, len(d.Groups)),
	}
	names := map[int64]string{0: ""}
	for _, w := range d.Cells {
		c := Cell{Name: w.Name, Ordinal: w.Ordinal, Region: w.Region, Weight: w.Weight}
		for _, k := range w.Keys {
			c.Keys = append(c.Keys, PublicKey(k))
		}
		spec.Cells = append(spec.Cells, c)
		names[int64(w.Ordinal)] = w.Name
	}
	for _, r := range d.Private {
		if r[0] != int64(Slot(r[0])) {
			return nil, fmt.Errorf("%w: private slot %d", ErrTable, r[0])
		}
		a, err := assignment(names, r)
		if err != nil {
			return nil, err
		}
		spec.Private[Slot(r[0])] = a
	}
	for _, o := range d.Overrides {
		spec.Overrides[o[0]] = Slot(o[1]) // cut off or twice: not what Encode gives
	}
	for _, g := range d.Groups {
		spec.Groups[g.Name] = g.Slot
	}
	t, err := build(spec, func(t *Table) error { return t.addRuns(runs, names) })
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(t.Encode(), b) {
		return nil, fmt.Errorf("%w: not in the one form", ErrTable)
	}
	return t, nil
}

func assignment(names map[int64]string, r [4]int64) (Assignment, error) {
	owner, ok := names[r[1]]
	standby, ok2 := names[r[2]]
	if !ok || !ok2 {
		return Assignment{}, fmt.Errorf("%w: %v names a cell that isn't there", ErrTable, r)
	}
	return Assignment{Owner: owner, Standby: standby, Epoch: Epoch(r[3])}, nil
}

// ErrSignature is given for a table that the expected key didn't sign.
var ErrSignature = errors.New("route table is not signed by the expected key")

// domain keeps a signature of anything else from being taken for a table's.
const domain = "cellmart route table 1\n"

// magic starts the signed form, "cellmart-route-1 <key ID> <signature>\n<table>":
// one line of text before the document, which stays readable.
const magic = "cellmart-route-1"

// Signed is an encoded table with its signature, as it is stored and sent.
type Signed struct {
	Payload []byte
	KeyID   string
	Sig     []byte
}

// KeyID names a public key: the first 8 bytes of its SHA-256 in hex.
func KeyID(pub ed25519.PublicKey) string {
	h := sha256.Sum256(pub)
	return hex.EncodeToString(h[:8])
}

// Sign encodes and signs a table.
func Sign(priv ed25519.PrivateKey, t *Table) Signed {
	b := t.Encode()
	return Signed{Payload: b, KeyID: KeyID(priv.Public().(ed25519.PublicKey)), Sig: ed25519.Sign(priv, append([]byte(domain), b...))}
}

// Bytes is the signed form.
func (s Signed) Bytes() []byte {
	return append(fmt.Appendf(nil, "%s %s %s\n", magic, s.KeyID, base64.RawURLEncoding.EncodeToString(s.Sig)), s.Payload...)
}

// ParseSigned takes the signed form apart; it checks neither signature nor table.
func ParseSigned(b []byte) (Signed, error) {
	line, payload, ok := bytes.Cut(b, []byte("\n"))
	parts := bytes.Split(line, []byte(" "))
	if !ok || len(parts) != 3 || string(parts[0]) != magic {
		return Signed{}, fmt.Errorf("%w: no signed table", ErrTable)
	}
	sig, err := base64.RawURLEncoding.Strict().DecodeString(string(parts[2]))
	if err != nil {
		return Signed{}, fmt.Errorf("%w: signature: %w", ErrTable, err)
	}
	return Signed{Payload: payload, KeyID: string(parts[1]), Sig: sig}, nil
}

// Open checks the signature against pub, then the table. Tables of last resort
// (version 0) are never signed, so they are refused too.
func Open(pub ed25519.PublicKey, b []byte) (*Table, error) {
	s, err := ParseSigned(b)
	if err != nil {
		return nil, err
	}
	if len(pub) != ed25519.PublicKeySize {
		return nil, fmt.Errorf("%w: the expected key has %d bytes", ErrSignature, len(pub))
	}
	if s.KeyID != KeyID(pub) || !ed25519.Verify(pub, append([]byte(domain), s.Payload...), s.Sig) {
		return nil, fmt.Errorf("%w: key %.16q, want %s", ErrSignature, s.KeyID, KeyID(pub))
	}
	t, err := Decode(s.Payload)
	if err != nil {
		return nil, err
	}
	if t.version < 1 {
		return nil, fmt.Errorf("%w: signed version %d", ErrTable, t.version)
	}
	return t, nil
}

package search

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/blevesearch/bleve/v2"
	"github.com/blevesearch/bleve/v2/analysis/analyzer/keyword"
	"github.com/blevesearch/bleve/v2/analysis/lang/cjk"
	"github.com/blevesearch/bleve/v2/index/scorch"
	"github.com/blevesearch/bleve/v2/mapping"
	"github.com/blevesearch/bleve/v2/search/query"
	bleveindex "github.com/blevesearch/bleve_index_api"

	"example.com/cellmart/platform/cellkit/cdc"
	"example.com/cellmart/platform/cellkit/id"
)

// format is of the documents: an index of another one is built anew.
const format = "2"

const (
	keyFormat   = "format"
	keyPosition = "position/" // + zone
	entityDoc   = "e/"        // + kind/id
	purgeBatch  = 500
)

// index is the persistent full-text index. An entity has one document that keeps
// its rows and is found by nobody, and one for each of its hits. Positions are
// kept in the index too, and change in the same batch as the documents.
type index struct {
	bleve  bleve.Index
	number func(id.ID) string
	mu     sync.Mutex // one batch at a time: an entity is read, changed and written
}

// openIndex opens the index in dir, or begins one. What can't be opened is moved
// aside: it can be built again.
func openIndex(dir string, number func(id.ID) string, log *slog.Logger) (*index, error) {
	path := filepath.Join(dir, "index")
	config := map[string]any{"bolt_timeout": "2s"} // another process has it: say so instead of waiting for ever
	b, err := bleve.OpenUsing(path, config)
	switch {
	case err == nil:
		have, err := b.GetInternal([]byte(keyFormat))
		if err == nil && string(have) == format {
			return &index{bleve: b, number: number}, nil
		}
		log.Warn("the index has another format, it is built anew", "have", string(have), "want", format, "error", err)
		if err := errors.Join(b.Close(), os.RemoveAll(path)); err != nil {
			return nil, err
		}
	case errors.Is(err, bleve.ErrorIndexPathDoesNotExist):
	case held(err):
		return nil, fmt.Errorf("the index in %s is in use by another process: %w", dir, err)
	default:
		log.Error("the index can't be opened, it is built anew", "error", err)
		broken := path + ".broken"
		if err := errors.Join(os.RemoveAll(broken), rename(path, broken)); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	b, err = bleve.NewUsing(path, documents(), scorch.Name, scorch.Name, config)
	if err != nil {
		return nil, fmt.Errorf("make the index: %w", err)
	}
	if err := b.SetInternal([]byte(keyFormat), []byte(format)); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return &index{bleve: b, number: number}, nil
}

// held says whether the index's lock is what was waited for in vain.
func held(err error) bool { return err != nil && err.Error() == "timeout" }

func rename(from, to string) error {
	if _, err := os.Stat(from); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return os.Rename(from, to)
}

func (x *index) close() error { return x.bleve.Close() }

// documents is the mapping. Words are cut by Unicode's rules, Chinese into pairs
// of characters.
func documents() mapping.IndexMapping {
	field := func(f *mapping.FieldMapping, store, docValues bool) *mapping.FieldMapping {
		f.Store, f.DocValues, f.IncludeInAll, f.IncludeTermVectors = store, docValues, false, false
		return f
	}
	word := func() *mapping.FieldMapping {
		f := field(bleve.NewTextFieldMapping(), false, false)
		f.Analyzer = cjk.AnalyzerName
		return f
	}
	exact := func() *mapping.FieldMapping {
		f := field(bleve.NewTextFieldMapping(), false, false)
		f.Analyzer, f.SkipFreqNorm = keyword.Name, true
		return f
	}
	counted := func() *mapping.FieldMapping {
		f := exact()
		f.DocValues = true
		return f
	}
	kept := func() *mapping.FieldMapping { // not found, only given back
		f := field(bleve.NewTextFieldMapping(), true, false)
		f.Index = false
		return f
	}
	d := bleve.NewDocumentStaticMapping()
	for name, f := range map[string]*mapping.FieldMapping{
		"kind": exact(), "zone": exact(), "copy": exact(), "part": exact(), "seller": exact(), "state": exact(), "exact": exact(),
		"text": word(), "title": word(), "category": counted(),
		"price": field(bleve.NewNumericFieldMapping(), false, true), "at": field(bleve.NewNumericFieldMapping(), false, true),
		"raw": kept(),
	} {
		d.AddFieldMappingsAt(name, f)
	}
	m := bleve.NewIndexMapping()
	m.DefaultMapping = d
	m.DefaultAnalyzer = keyword.Name
	m.StoreDynamic, m.IndexDynamic, m.DocValuesDynamic = false, false, false
	return m
}

// position is how far the index is with a zone.
func (x *index) position(zone string) (p cdc.Position, err error) {
	b, err := x.bleve.GetInternal([]byte(keyPosition + zone))
	if err != nil || b == nil {
		return p, err
	}
	return p, json.Unmarshal(b, &p)
}

// writing is a batch that is being made.
type writing struct {
	x        *index
	batch    *bleve.Batch
	entities map[string]*entity
}

func (x *index) begin() *writing {
	return &writing{x: x, batch: x.bleve.NewBatch(), entities: map[string]*entity{}}
}

// apply stores changes of one zone with the position after them, in one batch.
// The end of a copy takes a batch of its own before it: what the zone doesn't
// have any more is found by searching.
func (x *index) apply(ctx context.Context, zone string, changes []cdc.Change, p cdc.Position) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	w := x.begin()
	for _, c := range changes {
		if c.Kind == cdc.KindEnd {
			// Without the position: if this is the last that happens, the same changes come again.
			if err := w.commit(); err != nil {
				return err
			}
			if err := x.purge(ctx, zone, c.Copy); err != nil {
				return err
			}
			w = x.begin()
			continue
		}
		for _, row := range c.Rows {
			o := origin{Zone: zone, Incarnation: c.Incarnation, LSN: uint64(c.LSN)}
			ch, ok := parse(row.Table, sent(row), row.Op == cdc.Delete, o)
			if !ok {
				continue
			}
			if err := w.take(ctx, ch, c.Copy); err != nil {
				return err
			}
		}
	}
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	w.batch.SetInternal([]byte(keyPosition+zone), b)
	return w.commit()
}

func (w *writing) take(ctx context.Context, c change, copy string) error {
	if c.id == "" { // a deleted SKU says its own ID only
		var err error
		if c.id, err = w.whole(ctx, c); err != nil || c.id == "" {
			return err
		}
	}
	key := entityDoc + c.kind + "/" + c.id
	e := w.entities[key]
	if e == nil {
		var err error
		if e, err = w.x.entity(key); err != nil {
			return err
		}
		if e == nil {
			e = &entity{Kind: c.kind, ID: c.id}
		}
		w.entities[key] = e
	}
	e.take(c)
	e.Copy = copy // also when it changed nothing: the zone has it
	return nil
}

// whole finds the thing that a part is of.
func (w *writing) whole(ctx context.Context, c change) (string, error) {
	for _, e := range w.entities {
		if _, ok := e.Parts[c.part]; ok && e.Kind == c.kind {
			return e.ID, nil
		}
	}
	found, err := w.x.find(ctx, bleve.NewConjunctionQuery(term("kind", "e-"+c.kind), term("part", c.part)), 1)
	if err != nil || len(found) == 0 {
		return "", err
	}
	return found[0][len(entityDoc+c.kind+"/"):], nil
}

// commit writes the entities and their hits.
func (w *writing) commit() error {
	for key, e := range w.entities {
		was := e.Hits
		e.Hits = nil
		for _, h := range e.hits(w.x.number) {
			answer, err := json.Marshal(h.answer)
			if err != nil {
				return err
			}
			e.Hits = append(e.Hits, h.doc)
			err = w.batch.Index(h.doc, map[string]any{
				"kind": h.kind, "seller": h.seller, "state": h.state, "exact": h.exact, "category": h.category, "text": append(h.text, h.title...),
				"title": h.title, "price": float64(h.price), "at": float64(h.at.UnixMicro()), "raw": string(answer),
			})
			if err != nil {
				return err
			}
		}
		for _, doc := range was {
			if !slices.Contains(e.Hits, doc) {
				w.batch.Delete(doc)
			}
		}
		raw, err := e.encode()
		if err != nil {
			return err
		}
		parts := make([]string, 0, len(e.Parts))
		for p := range e.Parts {
			parts = append(parts, p)
		}
		err = w.batch.Index(key, map[string]any{"kind": "e-" + e.Kind, "zone": e.zone(), "copy": e.Copy, "part": parts, "raw": raw})
		if err != nil {
			return err
		}
	}
	return w.x.bleve.Batch(w.batch) // returns when it's on disk
}

// purge removes what the zone's last copy didn't have.
func (x *index) purge(ctx context.Context, zone, copy string) error {
	q := bleve.NewBooleanQuery()
	q.AddMust(term("zone", zone))
	q.AddMustNot(term("copy", copy))
	for {
		found, err := x.find(ctx, q, purgeBatch)
		if err != nil || len(found) == 0 {
			return err
		}
		b := x.bleve.NewBatch()
		for _, key := range found {
			e, err := x.entity(key)
			if err != nil {
				return err
			}
			b.Delete(key)
			if e != nil {
				for _, doc := range e.Hits {
					b.Delete(doc)
				}
			}
		}
		if err := x.bleve.Batch(b); err != nil {
			return err
		}
	}
}

func term(field, text string) query.Query {
	q := bleve.NewTermQuery(text)
	q.SetField(field)
	return q
}

// find gives the documents of a query, in no order.
func (x *index) find(ctx context.Context, q query.Query, limit int) ([]string, error) {
	r := bleve.NewSearchRequestOptions(q, limit, 0, false)
	r.Score = "none"
	res, err := x.bleve.SearchInContext(ctx, r)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, h := range res.Hits {
		out = append(out, h.ID)
	}
	return out, nil
}

// entity reads what is kept of one, nil when there is none.
func (x *index) entity(key string) (*entity, error) {
	d, err := x.bleve.Document(key)
	if err != nil || d == nil {
		return nil, err
	}
	e := &entity{}
	d.VisitFields(func(f bleveindex.Field) {
		if f.Name() == "raw" {
			err = json.Unmarshal(f.Value(), e)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("document %s: %w", key, err)
	}
	return e, nil
}

// sent gives a row's values by column, without those that an update left alone.
func sent(r cdc.Row) map[string]*string {
	out := make(map[string]*string, len(r.Columns))
	for i, name := range r.Columns {
		switch v := r.Values[i]; v.State {
		case cdc.Sent:
			out[name] = &v.Text
		case cdc.Null:
			out[name] = nil
		}
	}
	return out
}

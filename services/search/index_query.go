package search

import (
	"context"
	"encoding/json"

	"github.com/blevesearch/bleve/v2"
	"github.com/blevesearch/bleve/v2/search/query"

	"example.com/cellmart/services/search/searchapi"
)

// deepest is how far lists go: nobody reads on, and each page costs all before it.
const deepest = 1000

// question is what is looked for.
type question struct {
	Kind     string   `json:"k"`
	Text     string   `json:"q,omitempty"`
	Seller   string   `json:"s,omitempty"`
	Category string   `json:"c,omitempty"`
	State    string   `json:"st,omitempty"` // of an order; the currency, of a product
	Min      *float64 `json:"lo,omitempty"`
	Max      *float64 `json:"hi,omitempty"`
	Sort     string   `json:"o,omitempty"`
}

// orders are the ways to sort: what is equal is in the order of IDs.
func (q question) order() []string {
	switch q.Sort {
	case "newest":
		return []string{"-at", "_id"}
	case "price":
		return []string{"price", "-at", "_id"}
	case "-price":
		return []string{"-price", "-at", "_id"}
	}
	if q.Text == "" {
		return []string{"-at", "_id"}
	}
	return []string{"-_score", "-at", "_id"}
}

func (q question) query() query.Query {
	all := []query.Query{term("kind", q.Kind)}
	for field, text := range map[string]string{"seller": q.Seller, "state": q.State, "exact": q.Category} {
		if text != "" {
			all = append(all, term(field, text))
		}
	}
	if q.Min != nil || q.Max != nil {
		yes := true
		price := bleve.NewNumericRangeInclusiveQuery(q.Min, q.Max, &yes, &yes)
		price.SetField("price")
		all = append(all, price)
	}
	if q.Text != "" {
		// Every word, somewhere; in the title it counts more. A number or ID is found as it is.
		words := bleve.NewMatchQuery(q.Text)
		words.SetField("text")
		words.SetOperator(query.MatchQueryOperatorAnd)
		title := bleve.NewMatchQuery(q.Text)
		title.SetField("title")
		title.SetBoost(3)
		weighed := bleve.NewBooleanQuery()
		weighed.AddMust(words)
		weighed.AddShould(title)
		all = append(all, bleve.NewDisjunctionQuery(weighed, term("exact", q.Text)))
	}
	return bleve.NewConjunctionQuery(all...)
}

// search gives a page of answers and about how many there are.
func (x *index) search(ctx context.Context, q question, from, limit int) (answers []json.RawMessage, total uint64, err error) {
	r := bleve.NewSearchRequestOptions(q.query(), limit, from, false)
	r.Fields = []string{"raw"}
	r.SortBy(q.order())
	res, err := x.bleve.SearchInContext(ctx, r)
	if err != nil {
		return nil, 0, err
	}
	for _, h := range res.Hits {
		raw, ok := h.Fields["raw"].(string)
		if !ok {
			continue // can't be: every hit has it
		}
		answers = append(answers, json.RawMessage(raw))
	}
	return answers, res.Total, nil
}

// facets is how many categories are counted at most, those with the most first.
const facets = 50

// categories counts what a question finds by category, whichever it asks for.
func (x *index) categories(ctx context.Context, q question) ([]searchapi.Facet, error) {
	q.Category = ""
	r := bleve.NewSearchRequestOptions(q.query(), 0, 0, false)
	r.AddFacet("category", bleve.NewFacetRequest("category", facets))
	res, err := x.bleve.SearchInContext(ctx, r)
	if err != nil {
		return nil, err
	}
	var out []searchapi.Facet
	for _, f := range res.Facets["category"].Terms.Terms() {
		out = append(out, searchapi.Facet{Category: f.Term, Count: f.Count})
	}
	return out, nil
}

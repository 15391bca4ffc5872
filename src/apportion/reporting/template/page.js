(function () {
  "use strict";
  var root = document.documentElement;
  var data = JSON.parse(document.getElementById("data").textContent);
  var hidden = new Set();
  var system = window.matchMedia("(prefers-color-scheme: dark)");
  var touch = window.matchMedia("(pointer: coarse)").matches;
  var config = { displayModeBar: false, responsive: true, showTips: false };

  function all(selector, within) { return Array.prototype.slice.call((within || document).querySelectorAll(selector)); }

  function make(tag, style, text) {
    var made = document.createElement(tag);
    if (style) { made.className = style; }
    if (text !== undefined) { made.textContent = text; }
    return made;
  }

  function isDark() { return root.dataset.theme ? root.dataset.theme === "dark" : system.matches; }

  function colour(variable) { return getComputedStyle(root).getPropertyValue("--" + variable).trim(); }

  function channels(hex) { return [1, 3, 5].map(function (at) { return parseInt(hex.slice(at, at + 2), 16); }); }

  function tint(hex, alpha) { return "rgba(" + channels(hex).join(",") + "," + alpha + ")"; }

  // The colour of a group of parameters: 0 is the first of the model, 1 the last.
  function depthColour(depth) {
    var at = depth < 0.5 ? 0 : 1;
    var from = channels(colour("d" + at)), to = channels(colour("d" + (at + 1)));
    return "rgb(" + from.map(function (one, place) {
      return Math.round(one + (2 * depth - at) * (to[place] - one));
    }).join(",") + ")";
  }

  function choiceOf(name) { return document.getElementById(name + "-choice"); }

  // A copy of a figure in the colours that the page has now, without what is switched off or not chosen.
  function painted(name, size) {
    var figure = JSON.parse(JSON.stringify(data.figures[name]));
    figure.data.forEach(function (trace) {
      var meta = trace.meta;
      var own = meta.depth !== undefined ? depthColour(meta.depth) : colour(meta.slot === null ? "muted" : "r" + meta.slot);
      trace.visible = meta.choice === undefined ? !hidden.has(meta.recipe) : meta.choice === choiceOf(name).value;
      trace.line.color = own;
      if (trace.marker) { trace.marker.color = own; }
      if (trace.fillcolor) { trace.fillcolor = tint(own, isDark() ? 0.22 : 0.16); }
    });
    // Lines that coincide take turns, as many as are shown.
    var shown = figure.data.filter(function (trace) { return trace.visible && trace.meta.twins !== undefined; });
    shown.forEach(function (trace) {
      var same = shown.filter(function (other) { return other.meta.twins === trace.meta.twins; });
      var at = same.indexOf(trace);
      trace.line.dash = at ? data.stripe * (same.length - at) + "px," + data.stripe * at + "px" : "solid";
    });
    var layout = figure.layout;
    layout.font.color = colour("ink");
    layout.hoverlabel.bgcolor = colour("panel");
    layout.hoverlabel.bordercolor = colour("line");
    layout.hoverlabel.font.color = colour("ink");
    [layout.xaxis, layout.yaxis].forEach(function (axis) {
      axis.gridcolor = colour("line");
      axis.tickfont.color = colour("muted");
      if (axis.title) { axis.title.font.color = colour("muted"); }
    });
    (layout.annotations || []).forEach(function (note) { note.font.color = colour("muted"); });
    layout.uirevision = "keep";
    layout.dragmode = touch ? false : "zoom";
    if (size) { layout.width = size[0]; layout.height = size[1]; layout.autosize = false; } else { layout.autosize = true; }
    return figure;
  }

  // Beside the chosen recipe, the colours of its groups: all of up to twelve, evenly spaced ones of more.
  function keyOf(name, figure) {
    var key = choiceOf(name).parentNode.querySelector(".depths");
    var lines = figure.data.filter(function (trace) { return trace.visible; });
    var stride = Math.ceil(lines.length / 12);
    key.replaceChildren.apply(key, lines.filter(function (_, at) { return at % stride === 0; }).map(function (trace) {
      var entry = make("span"), mark = make("span", "swatch");
      mark.style.background = trace.line.color;
      entry.append(mark, trace.name);
      return entry;
    }));
  }

  // A plot in an experiment that is not shown has no size, and waits until it is chosen.
  function draw(sizes) {
    all(".plot").forEach(function (place) {
      if (!sizes && place.closest("[hidden]")) { return; }
      var figure = painted(place.id, sizes ? sizes(place) : null);
      if (choiceOf(place.id)) { keyOf(place.id, figure); }
      (place.data ? Plotly.react : Plotly.newPlot)(place, figure.data, figure.layout, config);
    });
    document.querySelector("#theme span").textContent = isDark() ? "Light page" : "Dark page";
  }

  // For each recipe the first reported step at which its mean accuracy is at least the chosen one.
  function look(section, percent) {
    var firsts = data.reach[section.id].rows.map(function (row) {
      return { row: row, at: row.points.find(function (point) { return point.accuracy >= percent / 100 - 1e-9; }) };
    });
    var spent = firsts.filter(function (one) { return one.at && one.row.private && one.at.spent !== null; })
      .map(function (one) { return one.at.spent; });
    var least = spent.length > 1 ? Math.min.apply(null, spent) : null;
    var body = section.querySelector("tbody");
    body.replaceChildren.apply(body, firsts.map(function (one) {
      var best = one.at && one.row.private && one.at.spent !== null && one.at.spent === least;
      var line = make("tr", best ? "best" : ""), head = make("th"), named = make("span", "named"), mark = make("span", "swatch");
      head.scope = "row";
      mark.style.background = "var(--r" + one.row.slot + ")";
      named.append(mark, make("span", "", one.row.label));
      head.append(named);
      if (best) {
        var tags = make("div", "tags");
        tags.append(make("span", "badge good", "least ε"));
        head.append(tags);
      }
      line.append(head);
      if (one.at) {
        ["epsilon", "epochs", "step"].forEach(function (name) { line.append(make("td", "num", one.at[name])); });
      } else {
        var never = make("td", "num never", "not reached; at most " + one.row.best);
        never.colSpan = 3;
        line.append(never);
      }
      return line;
    }));
  }

  all(".reach").forEach(function (section) {
    var inputs = all("input", section);
    function set(value) {
      inputs.forEach(function (input) { if (input.value !== value) { input.value = value; } });
      look(section, parseFloat(value));
    }
    inputs.forEach(function (input) {
      input.addEventListener("input", function () { if (input.value !== "") { set(input.value); } });
    });
    set(inputs[inputs.length - 1].value);
  });

  all("select[data-figure]").forEach(function (select) { select.addEventListener("change", function () { draw(); }); });

  var chooser = document.getElementById("experiment");
  function choose(place) {
    chooser.value = place;
    all(".experiment").forEach(function (one) { one.hidden = one.id !== "experiment-" + place; });
    all(".choose").forEach(function (one) { one.setAttribute("aria-pressed", String(one.dataset.experiment === place)); });
    draw();
  }
  all(".choose").forEach(function (button) {
    button.addEventListener("click", function () {
      choose(button.dataset.experiment);
      chooser.parentNode.scrollIntoView({ behavior: "smooth" });
    });
  });

  document.getElementById("theme").addEventListener("click", function () {
    root.dataset.theme = isDark() ? "light" : "dark";
    draw();
  });
  system.addEventListener("change", function () { draw(); });

  var chips = all(".chip");
  chips.forEach(function (chip) {
    chip.addEventListener("click", function () {
      var recipe = chip.dataset.recipe;
      if (!hidden.delete(recipe)) { hidden.add(recipe); }
      chips.forEach(function (other) {
        if (other.dataset.recipe === recipe) { other.setAttribute("aria-pressed", String(!hidden.has(recipe))); }
      });
      draw();
    });
  });

  // Paper is light, has no buttons to open a section or to choose an experiment with, and is as wide as it is.
  var before = null;
  window.addEventListener("beforeprint", function () {
    if (before) { return; }
    before = { theme: root.dataset.theme, closed: all("details:not([open])") };
    root.dataset.theme = "light";
    before.closed.forEach(function (one) { one.open = true; });
    draw(function (place) { return place.parentNode.classList.contains("wide") ? [670, 256] : [320, 192]; });
  });
  window.addEventListener("afterprint", function () {
    if (!before) { return; }
    if (before.theme) { root.dataset.theme = before.theme; } else { delete root.dataset.theme; }
    before.closed.forEach(function (one) { one.open = false; });
    before = null;
    draw();
  });

  if (chooser) {
    chooser.addEventListener("change", function () { choose(chooser.value); });
    choose("0");
  } else {
    draw();
  }
})();

// Pages through the sampled trajectories. Everything from the records enters the page as text, never as markup.
"use strict";
(() => {
  const by = (id) => document.getElementById(id);
  const rows = JSON.parse(by("trajectory-data").textContent);
  const [row, run, group, item] = ["row", "run", "group", "item"].map((name) => by(`pick-${name}`));
  const list = by("steps");
  let step = 0;

  const element = (name, text, kind) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (kind) made.className = kind;
    return made;
  };

  // What is chosen, from the row down to the trajectory; names stay chosen where the new row has them too.
  const chosen = () => {
    const runs = rows[row.selectedIndex].runs;
    const groups = runs[run.selectedIndex].groups;
    return groups[group.selectedIndex].items[item.selectedIndex];
  };
  const fill = (select, entries, key) => {
    const old = select.dataset.key;
    const labels = entries.map((entry) => entry.label);
    select.replaceChildren(...labels.map((label) => element("option", label)));
    const found = entries.findIndex((entry) => key(entry) === old);
    select.selectedIndex = Math.max(0, found);
    remember(select, entries, key);
  };
  const remember = (select, entries, key) => {
    select.dataset.key = key(entries[select.selectedIndex]);
  };
  const label = (entry) => entry.label;
  const task = (entry) => entry.task;
  const refill = (from) => {
    const runs = rows[row.selectedIndex].runs;
    if (from < 1) fill(run, runs, label);
    else if (from === 1) remember(run, runs, label);
    const groups = runs[run.selectedIndex].groups;
    if (from < 2) fill(group, groups, label);
    else if (from === 2) remember(group, groups, label);
    const items = groups[group.selectedIndex].items;
    if (from < 3) fill(item, items, task);
    else remember(item, items, task);
    by("run-name").textContent = runs[run.selectedIndex].run;
    open();
  };

  const pair = (term, text, kind) => (text ? [element("dt", term), element("dd", text, kind)] : []);
  const open = () => {
    const now = chosen();
    step = 0;
    by("task").textContent = now.task;
    by("about").replaceChildren(...now.about.map((text) => element("li", text)));
    by("skill").replaceChildren(...pair("Skill in the prompt", now.skill, "text"));
    const steps = now.steps || [];
    list.replaceChildren(
      ...steps.map((each, number) => {
        const made = element("li", `${number + 1}. ${each.a || each.r || "(nothing)"}${each.bad ? " ✗" : ""}`);
        made.id = `step-${number}`;
        made.setAttribute("role", "option");
        made.addEventListener("click", () => show(number));
        return made;
      }),
    );
    list.scrollTop = 0;
    show(0);
  };

  const response = (each) => {
    if (!each.k) return pair("Response", each.r, "text said");
    const most = Math.max(...each.k.map(([, value]) => Math.abs(value)), 1e-9);
    const tokens = element("dd", undefined, "text said");
    for (const [text, value] of each.k) {
      const made = element("span", text, value < 0 ? "token less" : "token more");
      made.style.setProperty("--share", `${Math.round((100 * Math.abs(value)) / most)}%`);
      made.title = `skill: ${value} nats`;
      tokens.append(made, " ");
    }
    return [element("dt", "Response, tokens by how much the skill raised their log-probs"), tokens];
  };

  const show = (number) => {
    const now = chosen();
    const steps = now.steps || [];
    step = Math.min(Math.max(0, number), Math.max(0, steps.length - 1));
    [...list.children].forEach((made, index) => made.setAttribute("aria-selected", String(index === step)));
    const each = steps[step];
    if (!each) {
      list.removeAttribute("aria-activedescendant");
      by("where").textContent = "No step was recorded.";
      by("step").replaceChildren();
    } else {
      list.setAttribute("aria-activedescendant", `step-${step}`);
      const made = list.children[step];
      if (made.offsetTop < list.scrollTop) list.scrollTop = made.offsetTop;
      const below = made.offsetTop + made.offsetHeight - list.clientHeight;
      if (below > list.scrollTop) list.scrollTop = below;
      const last = step === steps.length - 1;
      by("where").textContent = `Step ${step + 1} of ${steps.length}${last && now.more ? `; ${now.more}` : ""}`;
      by("step").replaceChildren(
        ...pair("Observation", each.o, "text"),
        ...pair("Skill of this step", each.s, "text skill"),
        ...response(each),
        ...pair("Action", each.a, "text said"),
        ...pair("Outcome", each.f, each.bad ? "bad" : ""),
      );
    }
    by("step-back").disabled = step === 0;
    by("step-on").disabled = step >= steps.length - 1;
    by("item-back").disabled = item.selectedIndex === 0;
    by("item-on").disabled = item.selectedIndex === item.options.length - 1;
  };
  const turn = (offset) => {
    const wanted = item.selectedIndex + offset;
    if (wanted < 0 || wanted >= item.options.length) return;
    item.selectedIndex = wanted;
    refill(3);
  };

  const keys = {
    ArrowRight: () => show(step + 1),
    ArrowDown: () => show(step + 1),
    ArrowLeft: () => show(step - 1),
    ArrowUp: () => show(step - 1),
    Home: () => show(0),
    End: () => show(Infinity),
    PageDown: () => turn(1),
    PageUp: () => turn(-1),
  };
  list.addEventListener("keydown", (event) => {
    if (!(event.key in keys) || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    keys[event.key]();
  });
  by("step-back").addEventListener("click", () => show(step - 1));
  by("step-on").addEventListener("click", () => show(step + 1));
  by("item-back").addEventListener("click", () => turn(-1));
  by("item-on").addEventListener("click", () => turn(1));
  [row, run, group, item].forEach((select, from) => select.addEventListener("change", () => refill(from)));
  fill(row, rows, label);
  refill(0);
  by("viewer").hidden = false;
})();
